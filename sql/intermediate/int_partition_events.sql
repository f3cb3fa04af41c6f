-- int_partition_events: how many events of the window each micro-partition has; groups are made of these.
-- grain:  micro_partition
-- reads:  events files
-- params: $files
select
    micro_partition,
    count(*) as num_events
from read_parquet($files, hive_partitioning = false)
group by micro_partition
order by micro_partition
