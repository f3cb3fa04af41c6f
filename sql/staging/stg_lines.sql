-- stg_lines: the lines of a log. verdict: why a line is not a page visit, if the line alone shows it; only requests have method,
--         status and agent. Too long values are cut or null, so that they take no memory; times that mean nothing are null.
--         query: of one in sixteen URLs with a query, enough to find paths with very many different queries, for
--         ingest.keep_query.
-- grain:  line (1-based, the first one of a record of several lines)
-- reads:  split_fields (line, user_id, url, is_request, time, method, status, agent, view, rejected)
-- params: $keeps_query, $max_url_bytes, $max_user_bytes, $max_time_bytes, $crawler_pattern, $asset_pattern,
--         $views (values of view in page views, or none)
select
    line,
    case when strlen(user_id) > $max_user_bytes then left(user_id, $max_user_bytes + 1) else user_id end as user_id,
    page_key(url, $keeps_query, $max_url_bytes) as page_key,
    case
        when not $keeps_query and contains(url, '?') and strlen(url) <= $max_url_bytes and hash(url) % 16 = 0
            then split_part(split_part(url, '#', 1), '?', 2)
    end as query,
    case
        when typeof(time) = 'VARCHAR'
            and (
                strlen(time::varchar) > $max_time_bytes
                or strlen(time::varchar) < 10
                and regexp_full_match(time::varchar, '(?i)\s*(-|na|n/a|null|\\n|none|undefined)?\s*')
            )
            then null
        else time
    end as time,
    case
        when rejected is not null then rejected
        when len($views::varchar[]) > 0 and not list_contains($views::varchar[], coalesce("view", '')) then 'not a page view'
        when upper(method) not in ('GET', '', '-') then 'not a GET request'
        when try_cast(status as integer) >= 400 then 'status 400 or above'
        when regexp_matches(agent, $crawler_pattern) then 'crawler'
        when strlen(url) > $max_url_bytes then 'URL too long'
        when is_request and regexp_matches(regexp_extract(url, '^[^?#]*'), $asset_pattern) then 'static asset'
    end as verdict
from split_fields
