-- int_source_users: users of a source under the names that events have.
--         With pads, a name is HMAC-SHA256 in hex: sha256(outer pad, sha256(inner pad, id)); without, the id itself.
-- grain:  user_code
-- reads:  int_raw_users (raw_id, user_code)
-- params: $max_user_bytes, $inner_pad, $outer_pad (the key's, or null)
select
    user_code,
    case
        when $inner_pad::blob is null then raw_id
        else sha256($outer_pad::blob || unhex(sha256($inner_pad::blob || encode(raw_id))))
    end as user_id,
    case
        when coalesce(trim(raw_id), '') = '' then 'no user'
        when strlen(raw_id) > $max_user_bytes then 'user id too long'
    end as verdict
from int_raw_users
