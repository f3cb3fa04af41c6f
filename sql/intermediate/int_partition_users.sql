-- int_partition_users: how many users the first micro-partitions have: a sample of all, as a hash divides users.
-- grain:  one row
-- reads:  events files
-- params: $files, $num_partitions
select count(distinct user_id) as num_users
from read_parquet($files, hive_partitioning = false)
where micro_partition < $num_partitions
