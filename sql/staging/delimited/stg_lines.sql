-- stg_lines: the lines of a log with delimited fields (CSV, TSV).
-- grain:  line (1-based, the first one of a record that goes over several)
-- reads:  delivered_fields (line, user_id, url, time, method, status, agent, rejected)
-- params: $keeps_query, $max_url_bytes, $crawler_pattern
select
    line,
    user_id,
    page_key(url, $keeps_query, $max_url_bytes) as page_key,
    sampled_query(url, $keeps_query, $max_url_bytes) as query,
    time,
    line_verdict(rejected, url, method, status, agent, $max_url_bytes, $crawler_pattern) as verdict
from delivered_fields
