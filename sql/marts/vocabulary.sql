-- vocabulary: the items that enough events and enough people have seen, the most frequent first.
-- grain:  url
-- reads:  int_item_totals
-- params: $min_item_events, $min_item_users
with kept_items as (
    select
        url,
        events,
        users
    from int_item_totals
    where events >= $min_item_events and users >= $min_item_users
)

select
    (row_number() over (order by events desc, url) - 1)::integer as item_ix,
    url,
    events as count,
    users
from kept_items
order by item_ix
