-- int_partition_users: the number of users in the first micro-partitions: a random sample, as a hash assigns users.
-- grain:  one row
-- reads:  events files
-- params: $files, $num_partitions
select count(distinct user_id) as num_users
from read_parquet($files, hive_partitioning = false)
where micro_partition < $num_partitions
