-- int_users: the number of users. A grouping, unlike count(distinct), can spill to disk.
-- grain:  one row
-- reads:  events files
-- params: $files
select count(*) as num_users
from (select distinct user_id from read_parquet($files, hive_partitioning = false))
