-- stg_lines: the lines of a web server's access log, Common or Combined format; blank lines do not count.
--         HOST IDENT USER [TIME] "METHOD URL PROTOCOL" STATUS BYTES "REFERER" "AGENT", the last two in Combined only.
--         Servers write \" and \\ inside quotes: encoded as a URL would have them, they do not end a field.
-- grain:  line (1-based)
-- reads:  delivered_lines (line, text, rejected)
-- params: $keeps_query, $max_url_bytes, $crawler_pattern
with quoted_fields as (
    select
        line,
        rejected,
        string_split(replace(replace(text, '\\', '%5C'), '\"', '%22'), '"') as quoted
    from delivered_lines
    where rejected is not null or trim(text, chr(9) || chr(10) || chr(13) || ' ') <> ''
),

named_fields as (
    select
        line,
        rejected,
        split_part(quoted[1], ' ', 1) as host,
        split_part(split_part(quoted[1], '[', -1), ']', 1) as time,
        quoted[2] as request,
        split_part(quoted[3], ' ', 2) as status,
        quoted[6] as agent,
        len(quoted) >= 3 and contains(quoted[1], '[') and contains(quoted[1], ']') as is_access_line
    from quoted_fields
),

requests as (
    select
        *,
        split_part(request, ' ', 1) as method,
        case
            when contains(request, ' HTTP/')
                then split_part(request[strlen(split_part(request, ' ', 1)) + 2:], ' HTTP/', 1)
            else split_part(request, ' ', 2)
        end as url
    from named_fields
)

select
    line,
    host as user_id,
    page_key(url, $keeps_query, $max_url_bytes) as page_key,
    sampled_query(url, $keeps_query, $max_url_bytes) as query,
    time,
    line_verdict(
        case
            when rejected is not null then rejected
            when not coalesce(is_access_line and try_cast(status as integer) between 100 and 999, false)
                then 'not an access-log line'
        end,
        url,
        method,
        status,
        agent,
        $max_url_bytes,
        $crawler_pattern
    ) as verdict
from requests
