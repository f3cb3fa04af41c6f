-- int_source_size: the number of lines of a source, and the total bytes of their users and URLs: of all lines, and of distinct
--         values (approximate).
-- grain:  one row
-- reads:  stg_lines
select
    count(*) as num_lines,
    coalesce(sum(strlen(user_id)), 0)::bigint + coalesce(sum(strlen(page_key)), 0)::bigint as text_bytes,
    approx_count_distinct(user_id) + approx_count_distinct(page_key) as num_distinct,
    coalesce(approx_count_distinct(user_id) * avg(strlen(user_id)), 0)::bigint
    + coalesce(approx_count_distinct(page_key) * avg(strlen(page_key)), 0)::bigint as distinct_text_bytes
from stg_lines
