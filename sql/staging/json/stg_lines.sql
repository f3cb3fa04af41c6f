-- stg_lines: the lines of a log with a JSON object a line; blank lines do not count.
-- grain:  line (1-based)
-- reads:  delivered_lines (line, text, rejected)
-- params: $pointers (JSON pointers to user, url, time, method, status, agent), $keeps_query, $max_url_bytes, $crawler_pattern
with parsed_lines as (
    select
        line,
        case
            when rejected is not null then rejected
            when not json_valid(text) then 'not JSON'
            when contains(text, '\u0000') then 'NUL byte'
        end as rejected,
        case when rejected is null and json_valid(text) then json_extract_string(text, $pointers::varchar[]) end as fields
    from delivered_lines
    where rejected is not null or trim(text, chr(9) || chr(10) || chr(13) || ' ') <> ''
)

select
    line,
    fields[1] as user_id,
    page_key(fields[2], $keeps_query, $max_url_bytes) as page_key,
    sampled_query(fields[2], $keeps_query, $max_url_bytes) as query,
    fields[3] as time,
    line_verdict(
        rejected, fields[2], fields[4], fields[5], fields[6], $max_url_bytes, $crawler_pattern
    ) as verdict
from parsed_lines
