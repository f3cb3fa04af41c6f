-- int_sorted_events: the events of some files in the order of all events files, in the micro-partitions that their users have when
--         there are $partitions of them.
-- grain:  (source, line)
-- reads:  events files
-- params: $files, $partitions
select
    (md5_number_lower(user_id) % $partitions)::integer as micro_partition,
    user_id,
    ts,
    source,
    line,
    url
from read_parquet($files, hive_partitioning = false)
order by
    micro_partition,
    user_id,
    ts,
    source,
    line
