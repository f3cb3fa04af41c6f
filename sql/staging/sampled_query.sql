-- sampled_query: the query of one in sixteen of the URLs that have one, where no key is kept; else null.
--         Enough to tell a path with very many different queries, of which ingest.keep_query makes pages.
-- macro:  url, keeps_query, max_url_bytes
case
    when not keeps_query and contains(url, '?') and strlen(url) <= max_url_bytes and hash(url) % 16 = 0
        then split_part(split_part(url, '#', 1), '?', 2)
end
