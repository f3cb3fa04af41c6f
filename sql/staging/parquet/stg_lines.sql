-- stg_lines: the rows of a log in Parquet, bytes without a type taken for UTF-8; a column that the file lacks is named
--         surf2vec_absent.
-- grain:  line (row of the file, 1-based)
-- reads:  the file
-- params: $path, $user_column, $url_column, $time_column, $method_column, $status_column, $agent_column, $keeps_query,
--         $max_url_bytes, $max_user_bytes, $max_time_bytes, $crawler_pattern
with file_rows as (
    select
        *,
        null::varchar as surf2vec_absent
    from read_parquet($path, hive_partitioning = false, file_row_number = true, binary_as_string = true)
),

named_columns as (
    select
        file_row_number + 1 as line,
        columns([$user_column]) as raw_user,
        columns([$url_column]) as raw_url,
        columns([$time_column]) as raw_time,
        columns([$method_column])::varchar as method,
        columns([$status_column])::varchar as status,
        columns([$agent_column])::varchar as agent
    from file_rows
),

whole_numbers as (
    select
        *,
        whole_number(raw_user::varchar, typeof(raw_user)) as user_id,
        whole_number(raw_url::varchar, typeof(raw_url)) as url
    from named_columns
)

select
    line,
    bounded(user_id, $max_user_bytes) as user_id,
    page_key(url, $keeps_query, $max_url_bytes) as page_key,
    sampled_query(url, $keeps_query, $max_url_bytes) as query,
    case when typeof(raw_time) = 'VARCHAR' and strlen(raw_time::varchar) > $max_time_bytes then null else raw_time end as time,
    line_verdict(
        case
            when contains(user_id, chr(0)) or contains(url, chr(0)) then 'NUL byte'
            when is_fraction(user_id, typeof(raw_user)) then 'user is no whole number'
            when is_fraction(url, typeof(raw_url)) then 'page is no whole number'
        end,
        url,
        method,
        status,
        agent,
        $max_url_bytes,
        $crawler_pattern
    ) as verdict
from whole_numbers
