-- int_group_events: the events of a group of micro-partitions in the order of the corpus, users and urls as numbers: narrow
--         rows, which sort fast. A user's order is (ts, source, line); day counts from 1970-01-01 in UTC and is null for
--         undated events.
-- grain:  an event
-- reads:  events files, int_group_users, int_group_items
-- params: $files, $undated_files, $first_partition, $last_partition
with group_events as (
    select
        micro_partition,
        user_id,
        ts,
        source,
        line,
        url,
        list_contains($undated_files::varchar[], filename) as is_undated
    from read_parquet($files, hive_partitioning = false, filename = true)
    where micro_partition between $first_partition and $last_partition
)

select
    int_group_users.user_rank,
    case
        when not group_events.is_undated then (group_events.ts::date - date '1970-01-01')::integer
    end as day,
    int_group_items.item_code
from group_events
inner join int_group_users using (micro_partition, user_id)
inner join int_group_items using (url)
order by
    int_group_users.user_rank,
    group_events.ts,
    group_events.source,
    group_events.line
