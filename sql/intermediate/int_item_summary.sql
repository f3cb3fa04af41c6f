-- int_item_summary: the number of items in the window, and the most events and users of an item.
-- grain:  one row
-- reads:  int_item_totals
select
    count(*) as num_items,
    coalesce(max(events), 0) as max_events,
    coalesce(max(users), 0) as max_users
from int_item_totals
