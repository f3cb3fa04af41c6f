-- line_verdict: why a line is no visit to a page, as far as the line alone tells; null when it may be one.
--         Only access logs have a method, a status and an agent; null where a log has none.
-- macro:  rejected, url, method, status, agent, max_url_bytes, crawler_pattern
case
    when rejected is not null then rejected
    when upper(method) not in ('GET', '', '-') then 'not a GET request'
    when try_cast(status as integer) >= 400 then 'status 400 or above'
    when regexp_matches(agent, crawler_pattern) then 'crawler'
    when strlen(url) > max_url_bytes then 'URL too long'
end
