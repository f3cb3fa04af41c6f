-- int_sampled_users: one in $sample_factor of a source's users, the same ones in every source: how many there are in several
--         sources can be told from these.
-- grain:  user_hash
-- reads:  int_source_users
-- params: $sample_factor
with hashed_users as (
    select md5_number_lower(user_id) as user_hash
    from int_source_users
    where verdict is null
)

select user_hash
from hashed_users
where user_hash % $sample_factor = 0
