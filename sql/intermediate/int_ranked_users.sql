-- int_ranked_users: the users of a source with their micro-partitions, numbered in the order that events have.
-- grain:  raw_id
-- reads:  int_source_users
-- params: $partitions
with placed_users as (
    select
        raw_id,
        user_id,
        verdict,
        (user_hash % $partitions)::integer as micro_partition
    from int_source_users
)

select
    raw_id,
    user_id,
    verdict,
    micro_partition,
    (row_number() over (order by micro_partition, user_id))::integer as user_rank
from placed_users
