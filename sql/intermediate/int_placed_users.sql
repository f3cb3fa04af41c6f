-- int_placed_users: the micro-partition of each user, in the order of events files and corpora: by micro-partition, then by the
--         bytes of the id.
-- grain:  user_code
-- reads:  int_user_ids (user_code, user_id)
-- params: $partitions
select
    user_code,
    user_id,
    md5_number_lower(coalesce(user_id, '')) as user_hash,
    (user_hash % $partitions)::integer as micro_partition
from int_user_ids
order by micro_partition, user_id
