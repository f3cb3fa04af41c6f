-- int_group_items: the urls seen by the users of a group of micro-partitions, each with a code.
--         Codes stand for urls until the vocabulary is known; they mean nothing outside the group.
-- grain:  url
-- reads:  events files
-- params: $files, $first_partition, $last_partition
with group_urls as (
    select distinct url
    from read_parquet($files, hive_partitioning = false)
    where micro_partition between $first_partition and $last_partition
)

select
    url,
    (row_number() over () - 1)::integer as item_code
from group_urls
