-- int_sampled_users: one in $sample_factor of a source's users, the same ones in every source: they give the number of users of
--         several sources. With pseudonyms all users, as their hash is of the pseudonym.
-- grain:  user_id
-- reads:  stg_lines
-- params: $sample_factor, $has_key, $max_user_bytes
select distinct user_id
from stg_lines
where
    verdict is null
    and trim(user_id) <> ''
    and strlen(user_id) <= $max_user_bytes
    and ($has_key or md5_number_lower(user_id) % $sample_factor = 0)
