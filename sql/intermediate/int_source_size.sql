-- int_source_size: how many lines a source has, and how long their users and URLs are together: of all lines, and of those that
--         differ, about.
-- grain:  one row
-- reads:  stg_lines
select
    count(*) as num_lines,
    coalesce(sum(strlen(user_id)), 0)::bigint + coalesce(sum(strlen(page_key)), 0)::bigint as text_bytes,
    approx_count_distinct(user_id) + approx_count_distinct(page_key) as num_distinct,
    coalesce(approx_count_distinct(user_id) * avg(strlen(user_id)), 0)::bigint
    + coalesce(approx_count_distinct(page_key) * avg(strlen(page_key)), 0)::bigint as distinct_text_bytes
from stg_lines
