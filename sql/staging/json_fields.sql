-- json_fields: the source_fields of a log with one JSON object per line, without blank lines.
-- grain:  line (1-based)
-- reads:  delivered_lines (line, text, rejected)
-- params: $pointers (JSON pointers to user, url, time, date, method, status, agent,
--         site, view)
with parsed_lines as (
    select
        line,
        text,
        case
            when rejected is not null then rejected
            when not json_valid(text) then 'not JSON'
            when contains(text, '\u0000') then 'NUL byte'
        end as fault,
        case when rejected is null and json_valid(text) then json_extract_string(text, $pointers::varchar[]) end as fields,
        case when regexp_matches(fields[1], '^(-?\d+[.eE]|[{\[])') then json_type(text, $pointers[1]) else '' end as user_type,
        case when regexp_matches(fields[2], '^(-?\d+[.eE]|[{\[])') then json_type(text, $pointers[2]) else '' end as url_type,
        case when starts_with(fields[3], '{') or starts_with(fields[3], '[') then json_type(text, $pointers[3]) end as time_type
    from delivered_lines
    where rejected is not null or trim(text, chr(9) || chr(10) || chr(13) || ' ') <> ''
)

select
    line,
    whole_number(fields[1], user_type) as user_id,
    whole_number(fields[2], url_type) as url,
    fields[3] as time,
    fields[4] as date,
    fields[5] as method,
    fields[6] as status,
    fields[7] as agent,
    fields[8] as site,
    fields[9] as "view",
    coalesce(
        fault,
        case when time_type in ('OBJECT', 'ARRAY') then 'time is a list or an object' end,
        number_fault(user_id, user_type, url, url_type)
    ) as rejected
from parsed_lines
