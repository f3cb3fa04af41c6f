-- incomplete_events: events that lack what every event has.
-- grain:  an event; none is good
-- reads:  events files
-- params: $files
select
    filename,
    source,
    line
from read_parquet($files, hive_partitioning = false, filename = true)
where
    micro_partition is null
    or ts is null
    or source is null
    or line is null
    or line < 1
    or coalesce(user_id, '') = ''
    or coalesce(url, '') = ''
