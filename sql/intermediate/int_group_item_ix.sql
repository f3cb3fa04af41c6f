-- int_group_item_ix: what a group's codes mean in the corpus; codes of items outside the vocabulary are absent.
-- grain:  item_code
-- reads:  file of int_item_counts of the group, vocabulary
-- params: $group_item_counts
select
    int_item_counts.item_code,
    vocabulary.item_ix
from read_parquet($group_item_counts) as int_item_counts
inner join vocabulary using (url)
