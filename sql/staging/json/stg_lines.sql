-- stg_lines: the lines of a log with a JSON object a line; blank lines do not count.
-- grain:  line (1-based)
-- reads:  delivered_lines (line, text, rejected)
-- params: $pointers (JSON pointers to user, url, time, method, status, agent), $keeps_query, $max_url_bytes, $max_user_bytes,
--         $max_time_bytes, $crawler_pattern
with parsed_lines as (
    select
        line,
        text,
        case
            when rejected is not null then rejected
            when not json_valid(text) then 'not JSON'
            when contains(text, '\u0000') then 'NUL byte'
        end as rejected,
        case when rejected is null and json_valid(text) then json_extract_string(text, $pointers::varchar[]) end as fields
    from delivered_lines
    where rejected is not null or trim(text, chr(9) || chr(10) || chr(13) || ' ') <> ''
),

whole_numbers as (
    select
        line,
        rejected,
        fields,
        case when regexp_matches(fields[1], '^-?\d+[.eE]') then json_type(text, $pointers[1]) else '' end as user_type,
        case when regexp_matches(fields[2], '^-?\d+[.eE]') then json_type(text, $pointers[2]) else '' end as url_type,
        whole_number(fields[1], user_type) as user_id,
        whole_number(fields[2], url_type) as url
    from parsed_lines
)

select
    line,
    bounded(user_id, $max_user_bytes) as user_id,
    page_key(url, $keeps_query, $max_url_bytes) as page_key,
    sampled_query(url, $keeps_query, $max_url_bytes) as query,
    bounded(fields[3], $max_time_bytes) as time,
    line_verdict(
        case
            when rejected is not null then rejected
            when is_fraction(user_id, user_type) then 'user is no whole number'
            when is_fraction(url, url_type) then 'page is no whole number'
        end,
        url,
        fields[4],
        fields[5],
        fields[6],
        $max_url_bytes,
        $crawler_pattern
    ) as verdict
from whole_numbers
