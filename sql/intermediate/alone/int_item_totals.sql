-- int_item_totals: of each item of the window, the events and the distinct users that cleaning left, as the only group has
--         counted them: nothing adds up, and a million strings are not grouped again.
-- grain:  url
-- reads:  the file of int_item_counts of the group
-- params: $item_counts
select
    url,
    events,
    users
from read_parquet($item_counts)
