-- misplaced_events: events that are not in the micro-partition of their user.
-- grain:  an event; none is good
-- reads:  events files
-- params: $files, $partitions
select
    filename,
    source,
    line
from read_parquet($files, hive_partitioning = false, filename = true)
where micro_partition <> md5_number_lower(user_id) % $partitions
