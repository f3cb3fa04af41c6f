-- unsorted_events: events that should stand before the event above them; files are sorted by micro-partition, user, time.
-- grain:  (file, row); none is good
-- reads:  events files
-- params: $files
with numbered_events as (
    select
        filename,
        file_row_number,
        row(micro_partition, user_id, ts, source, line) as place
    from read_parquet($files, hive_partitioning = false, filename = true, file_row_number = true)
),

neighbours as (
    select
        *,
        lag(place) over (partition by filename order by file_row_number) as place_above
    from numbered_events
)

select
    filename,
    file_row_number
from neighbours
where place <= place_above
