-- int_user_hashes: the users of a micro-partition in the order of the corpus, with the hash that keys their draws.
-- grain:  user_id
-- reads:  partition_users (user_id)
select
    user_id,
    md5_number_lower(user_id) as hash
from partition_users
order by user_id
