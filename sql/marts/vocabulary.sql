-- vocabulary: the items of the base at their places, then the items with enough events and users, the most frequent first.
--         Items of the base without events in the window have count 0. Without a base, stg_vocabulary is empty.
-- grain:  url
-- reads:  int_item_totals, stg_vocabulary (of the base, item_ix from 0 on)
-- params: $min_item_events, $min_item_users
with kept_items as (
    select
        url,
        stg_vocabulary.item_ix as base_ix,
        coalesce(int_item_totals.events, 0)::bigint as events,
        coalesce(int_item_totals.users, 0)::bigint as users
    from int_item_totals
    full outer join stg_vocabulary using (url)
    where
        stg_vocabulary.item_ix is not null
        or (int_item_totals.events >= $min_item_events and int_item_totals.users >= $min_item_users)
)

select
    (row_number() over (order by base_ix nulls last, events desc, url) - 1)::integer as item_ix,
    url,
    events as count,
    users
from kept_items
order by item_ix
