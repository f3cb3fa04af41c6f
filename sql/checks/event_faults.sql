-- event_faults: the number of events of some files that break each rule: no missing values, in the micro-partition of their
--         user, in the folder of their UTC day unless undated, sorted, and at most one event per line.
-- grain:  one row, of zeros if there are no faults
-- reads:  events files
-- params: $files, $partitions
with events as (
    select
        *,
        regexp_extract(filename, 'day=([^/]+)/[^/]+$', 1) as day,
        row(micro_partition, user_id, ts, source, line) as place,
        lag(place) over (partition by filename order by file_row_number) as place_above
    from read_parquet($files, hive_partitioning = false, filename = true, file_row_number = true)
),

duplicates as (
    select 1
    from events
    group by source, line
    having count(*) > 1
)

select
    count(*) filter (
        micro_partition is null
        or user_hash is null
        or ts is null
        or source is null
        or coalesce(line, 0) < 1
        or coalesce(user_id, '') = ''
        or coalesce(url, '') = ''
    ) as incomplete_events,
    count(*) filter (
        user_hash <> md5_number_lower(user_id)
        or micro_partition <> user_hash % $partitions
    ) as misplaced_events,
    count(*) filter (day <> 'undated' and day <> strftime(ts, '%Y-%m-%d')) as misdated_events,
    count(*) filter (place <= place_above) as unsorted_events,
    (select count(*) from duplicates) as duplicate_events
from events
