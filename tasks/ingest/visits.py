"""What in access logs is no visit of a page: files that a page needs, and crawlers."""

# Extensions of files that browsers fetch by themselves.
ASSET_PATTERN = (
    r"(?i)\.(?:css|js|mjs|map|json|gif|jpe?g|jfif|png|apng|ico|cur|svg|webp|avif|bmp|tiff?|xbm|woff2?|ttf|otf|eot|"
    r"mp3|ogg|wav|m4a|flac|mp4|m4v|webm|avi|mov|mpe?g|wmv|flv|swf)$"
)
# Agents that identify themselves as crawlers. CUBOT is a maker of phones.
CRAWLER_PATTERN = (
    r"(?i)(?:^|[^u]|[^c]u)bot|crawl|spider|slurp|archiver|scrap(?:er|y)|fetcher|feed|rss|monitor|uptime|pingdom|"
    r"lighthouse|headless|phantomjs|selenium|mediapartners|facebookexternalhit|validator|checker|"
    r"^(?:curl|wget|python|java|ruby|perl|php|go-http|okhttp|axios|node|libwww|lwp|apache-httpclient)\b"
)
