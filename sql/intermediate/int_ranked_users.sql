-- int_ranked_users: users of a source with their micro-partitions, in the order that events have.
-- grain:  user_code
-- reads:  int_source_users
-- params: $partitions
with placed_users as (
    select
        user_code,
        user_id,
        (user_hash % $partitions)::integer as micro_partition,
        verdict
    from int_source_users
)

select
    user_code,
    user_id,
    micro_partition,
    verdict
from placed_users
order by
    micro_partition,
    user_id
