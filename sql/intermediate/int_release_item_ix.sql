-- int_release_item_ix: what a group's codes mean in a release, in the order of the codes; -1 outside its vocabulary.
-- grain:  item_code
-- reads:  file of int_item_counts of the group, stg_vocabulary
-- params: $group_item_counts
select coalesce(stg_vocabulary.item_ix, -1)::integer as item_ix
from read_parquet($group_item_counts) as int_item_counts
left join stg_vocabulary using (url)
order by int_item_counts.item_code
