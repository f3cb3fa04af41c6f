-- int_item_totals: the events and the distinct users of each item of the window after cleaning.
--         Each user is in one group, so distinct users add up.
-- grain:  url
-- reads:  files of item counts, one per group
-- params: $item_counts
select
    url,
    sum(events)::bigint as events,
    sum(users)::bigint as users
from read_parquet($item_counts)
group by url
