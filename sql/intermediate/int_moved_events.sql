-- int_moved_events: the events of a file in the micro-partitions that their users have when there are $partitions of them.
-- grain:  (source, line)
-- reads:  an events file
-- params: $file, $partitions
select
    (md5_number_lower(user_id) % $partitions)::integer as micro_partition,
    user_id,
    ts,
    source,
    line,
    url
from read_parquet($file, hive_partitioning = false)
order by
    micro_partition,
    user_id,
    ts,
    source,
    line
