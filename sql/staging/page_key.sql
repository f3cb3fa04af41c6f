-- page_key: a URL without what can be dropped at sight, so that tracking parameters do not make every visit a page.
--         Never changes the item: canonical_item(page_key) = canonical_item(url). Page ids are left to that function.
-- macro:  url, keeps_query (whether a query may tell pages apart), max_url_bytes
case
    when strlen(url) > max_url_bytes then null
    when keeps_query or not (contains(url, '?') or contains(url, '#')) then url
    when starts_with(url, '/') or starts_with(url, 'http://') or starts_with(url, 'https://')
        then split_part(split_part(url, '?', 1), '#', 1)
    else url
end
