-- int_item_summary: how many items the window has, and how near the best of them come to the thresholds.
-- grain:  one row
-- reads:  int_item_totals
select
    count(*) as num_items,
    coalesce(max(events), 0) as max_events,
    coalesce(max(users), 0) as max_users
from int_item_totals
