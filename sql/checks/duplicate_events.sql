-- duplicate_events: lines of a source that made more than one event.
-- grain:  (source, line); none is good
-- reads:  events files
-- params: $files
select
    source,
    line,
    count(*) as num_events
from read_parquet($files, hive_partitioning = false)
group by
    source,
    line
having count(*) > 1
