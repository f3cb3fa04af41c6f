-- page_key: a URL without its fragment and unused query, so that tracking parameters do not make every visit a distinct URL.
--         The item stays the same: canonical_item(page_key) = canonical_item(url). Leaves page ids unchanged.
-- macro:  url, keeps_query (whether query keys may distinguish pages), max_url_bytes
case
    when strlen(url) > max_url_bytes then null
    when keeps_query or not (contains(url, '?') or contains(url, '#')) then url
    when starts_with(url, '/') or starts_with(url, 'http://') or starts_with(url, 'https://')
        then split_part(split_part(url, '?', 1), '#', 1)
    else url
end
