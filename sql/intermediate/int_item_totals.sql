-- int_item_totals: of each item of the window, the events and the distinct users that cleaning left.
--         A user lives in one group, so distinct users add up.
-- grain:  url
-- reads:  files of int_item_counts, one a group
-- params: $item_counts
select
    url,
    sum(events)::bigint as events,
    sum(users)::bigint as users
from read_parquet($item_counts)
group by url
