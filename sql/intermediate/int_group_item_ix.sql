-- int_group_item_ix: the item_ix in the vocabulary of each item code of a group, in the order of the codes; -1 outside of it.
-- grain:  item_code
-- reads:  file of item counts of the group, vocabulary (url, item_ix)
-- params: $item_counts
select coalesce(vocabulary.item_ix, -1)::integer as item_ix
from read_parquet($item_counts) as int_item_counts
left join vocabulary using (url)
order by int_item_counts.item_code
