-- int_raw_users: the ids of a source's users as they were delivered, each with a number.
-- grain:  raw_id
-- reads:  stg_lines
with raw_ids as (
    select distinct user_id as raw_id
    from stg_lines
    where
        verdict is null
        and user_id is not null
)

select
    raw_id,
    (row_number() over () - 1)::integer as user_code
from raw_ids
