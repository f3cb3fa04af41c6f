-- stg_lines: the lines of a log with fields: delimited ones (CSV, TSV), or those of an access log.
-- grain:  line (1-based, the first one of a record that goes over several)
-- reads:  delivered_fields (line, user_id, url, time, method, status, agent, rejected)
-- params: $keeps_query, $max_url_bytes, $max_user_bytes, $max_time_bytes, $crawler_pattern
select
    line,
    bounded(user_id, $max_user_bytes) as user_id,
    page_key(url, $keeps_query, $max_url_bytes) as page_key,
    sampled_query(url, $keeps_query, $max_url_bytes) as query,
    bounded(time, $max_time_bytes) as time,
    line_verdict(rejected, url, method, status, agent, $max_url_bytes, $crawler_pattern) as verdict
from delivered_fields
