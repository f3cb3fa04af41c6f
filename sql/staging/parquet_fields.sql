-- parquet_fields: the source_fields of Parquet logs with the same columns. Untyped bytes are read as UTF-8. Missing columns are
--         given as surf2vec_absent.
-- grain:  line (place of the file << $place_bits | its row, 1-based)
-- reads:  the files
-- params: $paths, $place_bits, $user_column, $url_column, $time_column, $method_column, $status_column, $agent_column, $site_column,
--         $view_column
with file_rows as (
    select
        *,
        file_index,
        null::varchar as surf2vec_absent
    from read_parquet($paths, hive_partitioning = false, file_row_number = true, binary_as_string = true)
),

named_columns as (
    select
        (file_index::bigint << $place_bits) + file_row_number + 1 as line,
        columns([$user_column]) as raw_user,
        columns([$url_column]) as raw_url,
        columns([$time_column]) as raw_time,
        columns([$method_column])::varchar as method,
        columns([$status_column])::varchar as status,
        columns([$agent_column])::varchar as agent,
        columns([$site_column])::varchar as site,
        columns([$view_column])::varchar as "view"
    from file_rows
)

select
    line,
    whole_number(raw_user::varchar, typeof(raw_user)) as user_id,
    whole_number(raw_url::varchar, typeof(raw_url)) as url,
    raw_time as time,
    method,
    status,
    agent,
    site,
    "view",
    case
        when contains(user_id, chr(0)) or contains(url, chr(0)) then 'NUL byte'
        else number_fault(user_id, typeof(raw_user), url, typeof(raw_url))
    end as rejected
from named_columns
