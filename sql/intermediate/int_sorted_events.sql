-- int_sorted_events: the events of some files in the order of events files, with the micro-partition of their user among
--         $partitions.
-- grain:  (source, line)
-- reads:  events files
-- params: $files, $partitions
select
    (user_hash % $partitions)::integer as micro_partition,
    user_hash,
    user_id,
    ts,
    source,
    line,
    url
from read_parquet($files, hive_partitioning = false)
order by micro_partition, user_id, ts, source, line
