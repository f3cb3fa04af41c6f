-- int_item_counts: of each item of a group, the events and the distinct users that cleaning left.
--         Zero counts stay: the item was seen in the window, if only by bots.
-- grain:  url
-- reads:  int_group_items, group_counts (item_code, events, users)
select
    int_group_items.url,
    int_group_items.item_code,
    group_counts.events,
    group_counts.users
from int_group_items
inner join group_counts using (item_code)
