-- stg_vocabulary: the items of a release, with the index of their vectors.
-- grain:  url
-- reads:  vocabulary.parquet of the release's corpus
-- params: $vocabulary
select
    url,
    item_ix
from read_parquet($vocabulary)
