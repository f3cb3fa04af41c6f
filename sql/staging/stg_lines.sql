-- stg_lines: the lines of a log, and why one is no visit to a page, as far as it alone tells; only access logs have a method, a
--         status and an agent. What is too long stays so, but takes no memory. query: of one in sixteen of the URLs that have
--         one, enough to tell a path with very many different queries, of which ingest.keep_query makes pages.
-- grain:  line (1-based, the first one of a record that goes over several)
-- reads:  source_fields (line, user_id, url, time, method, status, agent, rejected)
-- params: $keeps_query, $max_url_bytes, $max_user_bytes, $max_time_bytes, $crawler_pattern
select
    line,
    case when strlen(user_id) > $max_user_bytes then left(user_id, $max_user_bytes + 1) else user_id end as user_id,
    page_key(url, $keeps_query, $max_url_bytes) as page_key,
    case
        when not $keeps_query and contains(url, '?') and strlen(url) <= $max_url_bytes and hash(url) % 16 = 0
            then split_part(split_part(url, '#', 1), '?', 2)
    end as query,
    case when typeof(time) = 'VARCHAR' and strlen(time::varchar) > $max_time_bytes then null else time end as time,
    case
        when rejected is not null then rejected
        when upper(method) not in ('GET', '', '-') then 'not a GET request'
        when try_cast(status as integer) >= 400 then 'status 400 or above'
        when regexp_matches(agent, $crawler_pattern) then 'crawler'
        when strlen(url) > $max_url_bytes then 'URL too long'
    end as verdict
from source_fields
