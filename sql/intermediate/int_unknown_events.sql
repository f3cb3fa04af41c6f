-- int_unknown_events: the number of events whose items a release does not know.
-- grain:  one row
-- reads:  events files, stg_vocabulary
-- params: $files
select count(*) as num_events
from read_parquet($files, hive_partitioning = false) as events
anti join stg_vocabulary using (url)
