-- split_fields: the fields of a log, a page that is a request line (GET /a HTTP/1.1) split into method and page, a path with the
--         site before it, without its port, and addresses of users without their port. The regular expressions see few values: those
--         with a blank or a colon.
-- grain:  line
-- reads:  source_fields (line, user_id, url, time, method, status, agent, site, view, rejected)
select
    line,
    case
        when contains(user_id, ':')
            then regexp_replace(user_id, '^(?:((?:[0-9A-Fa-f:]*:)?\d+(?:\.\d+){3})|\[([0-9A-Fa-f:.]+)\]):\d+$', '\1\2')
        else user_id
    end as user_id,
    case
        when contains(url, ' ')
            then regexp_extract(
                url,
                '^"?(GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH|PROPFIND) +(\S.*?)(?: +HTTP/[0-9.]+)?"?$',
                ['method', 'page']
            )
    end as request,
    request['page'] <> '' as is_request,
    case when is_request then request['page'] else source_fields.url end as page,
    case
        when starts_with(page, '/') and site not in ('', '_', '-') then 'http://' || regexp_replace(site, ':[0-9]+$', '') || page
        else page
    end as url,
    case when is_request then request['method'] else source_fields.method end as method,
    time,
    status,
    agent,
    "view",
    rejected
from source_fields
