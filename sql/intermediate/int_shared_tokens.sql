-- int_shared_tokens: the tokens in page paths that more than one user of a source has: they are not secrets.
-- grain:  token
-- reads:  stg_lines, int_page_tokens (token)
-- params: $token_pattern
with page_tokens as (
    select
        user_id,
        unnest(regexp_extract_all(split_part(split_part(page_key, '#', 1), '?', 1), $token_pattern)) as token
    from stg_lines
    where
        verdict is null
        and regexp_matches(page_key, $token_pattern)
)

select token
from page_tokens
where token in (select asked.token from int_page_tokens as asked)
group by token
having min(user_id) <> max(user_id)
