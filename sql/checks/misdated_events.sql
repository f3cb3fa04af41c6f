-- misdated_events: events that are not of the UTC day of their folder; undated events are of no day.
-- grain:  an event; none is good
-- reads:  events files
-- params: $files
with dated_events as (
    select
        filename,
        source,
        line,
        ts,
        regexp_extract(filename, 'day=([^/]+)/[^/]+$', 1) as day
    from read_parquet($files, hive_partitioning = false, filename = true)
)

select
    filename,
    source,
    line
from dated_events
where
    day <> 'undated'
    and day <> strftime(ts, '%Y-%m-%d')
