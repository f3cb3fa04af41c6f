-- int_partition_events: the number of events of the window in each micro-partition, for dividing them into groups.
-- grain:  micro_partition
-- reads:  events files
-- params: $files
select
    micro_partition,
    count(*) as num_events
from read_parquet($files, hive_partitioning = false)
group by micro_partition
order by micro_partition
