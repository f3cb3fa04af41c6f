-- int_group_events: the events of a group of micro-partitions, in the order of the files: by micro-partition, user, time.
--         us: microseconds since 1970-01-01 in UTC, or the position of an undated event.
-- grain:  event
-- reads:  events files
-- params: $files, $undated_files, $first_partition, $last_partition
select
    micro_partition,
    user_hash,
    user_id,
    epoch_us(ts) as us,
    source,
    line,
    url,
    list_contains($undated_files::varchar[], filename) as is_undated
from read_parquet($files, hive_partitioning = false, filename = true)
where micro_partition between $first_partition and $last_partition
