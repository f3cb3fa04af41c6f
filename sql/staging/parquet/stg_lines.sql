-- stg_lines: the rows of a log in Parquet; a column that the file lacks is named surf2vec_absent.
-- grain:  line (row of the file, 1-based)
-- reads:  the file
-- params: $path, $user_column, $url_column, $time_column, $method_column, $status_column, $agent_column, $keeps_query,
--         $max_url_bytes, $crawler_pattern
with file_rows as (
    select
        *,
        null::varchar as surf2vec_absent
    from read_parquet($path, hive_partitioning = false, file_row_number = true)
),

named_columns as (
    select
        file_row_number + 1 as line,
        columns([$user_column])::varchar as user_id,
        columns([$url_column])::varchar as url,
        columns([$time_column]) as time,
        columns([$method_column])::varchar as method,
        columns([$status_column])::varchar as status,
        columns([$agent_column])::varchar as agent
    from file_rows
)

select
    line,
    user_id,
    page_key(url, $keeps_query, $max_url_bytes) as page_key,
    sampled_query(url, $keeps_query, $max_url_bytes) as query,
    time,
    line_verdict(
        case when contains(user_id, chr(0)) or contains(url, chr(0)) then 'NUL byte' end,
        url,
        method,
        status,
        agent,
        $max_url_bytes,
        $crawler_pattern
    ) as verdict
from named_columns
