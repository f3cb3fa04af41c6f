-- int_merged_events: the events of a source on one day that were made part by part, in the order of all events files.
-- grain:  (source, line)
-- reads:  events files of the parts
-- params: $files
select
    micro_partition,
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
