-- int_source_size: how many lines a source has, and how long their users and URLs are together.
-- grain:  one row
-- reads:  stg_lines
select
    count(*) as num_lines,
    coalesce(sum(strlen(user_id)) + sum(strlen(page_key)), 0)::bigint as text_bytes
from stg_lines
