-- int_source_users: the users of a source under the names that events have, with the hash that places them.
--         With pads, a name is HMAC-SHA256 in hex: sha256(outer pad, sha256(inner pad, id)); without, the id itself.
-- grain:  raw_id
-- reads:  stg_lines
-- params: $max_user_bytes, $inner_pad, $outer_pad (the key's, or null)
with raw_users as (
    select distinct user_id as raw_id
    from stg_lines
    where
        verdict is null
        and user_id is not null
),

named_users as (
    select
        raw_id,
        case
            when $inner_pad::blob is null then raw_id
            else sha256($outer_pad::blob || unhex(sha256($inner_pad::blob || encode(raw_id))))
        end as user_id,
        case
            when trim(raw_id) = '' then 'no user'
            when strlen(raw_id) > $max_user_bytes then 'user id too long'
        end as verdict
    from raw_users
)

select
    raw_id,
    user_id,
    md5_number_lower(user_id) as user_hash,
    verdict
from named_users
