-- int_group_users: the users of a group of micro-partitions in the order of the corpus, with the hash that keys their draws.
-- grain:  user_id
-- reads:  group_user_ids (user_id, user_code)
-- params: $partitions
with hashed_users as (
    select
        user_code,
        user_id,
        md5_number_lower(user_id) as hash
    from group_user_ids
)

select
    user_code,
    user_id,
    hash,
    (hash % $partitions)::integer as micro_partition
from hashed_users
order by
    micro_partition,
    user_id
