-- int_group_users: the users of a group of micro-partitions, numbered in the order of the corpus, with the hash that keys their
--         draws.
-- grain:  user_id
-- reads:  events files
-- params: $files, $first_partition, $last_partition
with group_users as (
    select distinct
        micro_partition,
        user_id
    from read_parquet($files, hive_partitioning = false)
    where micro_partition between $first_partition and $last_partition
)

select
    (row_number() over (order by micro_partition, user_id) - 1)::integer as user_rank,
    micro_partition,
    user_id,
    md5_number_lower(user_id) as hash
from group_users
