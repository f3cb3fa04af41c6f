"""Turns the distinct URLs of a source into items. Polars converts plain URLs, which most are, in columns;
`canonical_item` of `tasks/release/url_rules.py` converts the others one by one. It would give the same item for plain URLs.
"""

from collections.abc import Callable, Iterator

import polars as pl
import pyarrow as pa

from surf2vec.tasks.release.url_rules import INDEX_PAGE, UrlRules, canonical_item, find_tokens

BATCH = 100_000  # URLs converted together: limits the memory of intermediate results
# A plain URL has no character to encode, no dot segment, at most one index page, and no part long enough for a token.
_PART = "[A-Za-z0-9_~-][A-Za-z0-9_~.-]{0,30}"
_PLAIN = rf"^https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/{_PART})*/?$"
_SAME = rf"^(?:/{_PART})+/?$|^[A-Za-z0-9_]{{1,31}}$"  # paths and page ids that are items as they are
_NOT_PLAIN = r"/(?i:index|default)\.|eyJ"
_LONG = "[A-Za-z0-9_+=%-]{32}"
_JSON = r"""^\s*(?:\{|\[\s*\{?)\s*["']"""  # or how Python shows it
# How programs write a missing value, in small letters; the last is a UUID.
PLACEHOLDERS = (
    *("", "-", "na", "n/a", "nan", "<na>", "null", "\\n", "none", "undefined", "(not set)"),
    "00000000-0000-0000-0000-000000000000",
)
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


def find_pages(
    page_keys: pa.Array, rules: UrlRules, drops_assets: bool, find_shared: Callable[[pl.Series], pl.Series]
) -> tuple[pa.Array, pa.Array]:
    """Return the items and the verdicts of n distinct page keys, n large strings each. A verdict says why a key is not a page,
    and is null if it is one. `find_shared` returns the given tokens that several users have: they are not secrets.
    """
    keys = pl.Series("key", pl.from_arrow(page_keys), pl.String)
    short = keys.str.replace(INDEX_PAGE, "")
    is_plain = (short.str.contains(_PLAIN) & ~short.str.contains(_NOT_PLAIN)).fill_null(False)
    is_item = (keys.str.contains(_SAME) & ~keys.str.contains("eyJ")).fill_null(True)
    is_other = ~is_plain & (~is_item if rules.granularity == "page" else keys.is_not_null())
    others = keys.filter(is_other)
    tokens = _find_tokens(others) if rules.mask_secrets else others[:0]
    shared = find_shared(tokens) if len(tokens) else tokens
    plain = pl.concat([_make_plain(batch, rules) for batch in _cut(short.filter(is_plain))])
    kept = frozenset(shared)
    made = (pl.Series([canonical_item(key, rules, kept) for key in batch], dtype=pl.String) for batch in _cut(others))
    other = pl.concat(list(made))
    items = keys.clone().scatter(is_plain.arg_true(), plain).scatter(is_other.arg_true(), other)
    path = pl.col("key").str.extract("^([^?#]*)")
    verdict = (
        pl.when(pl.col("key").is_null() | pl.col("key").str.strip_chars().str.to_lowercase().is_in(PLACEHOLDERS))
        .then(pl.lit("no page"))
        .when(pl.col("key").str.contains(_JSON))
        .then(pl.lit("page is a list or an object"))
        .when(path.str.contains(ASSET_PATTERN) if drops_assets else pl.lit(False))
        .then(pl.lit("static asset"))
        .when(pl.col("item").is_null())
        .then(pl.lit("not a page"))
    )
    verdicts = pl.DataFrame({"key": keys, "item": items}).select(verdict).to_series()
    oldest = pl.CompatLevel.oldest()
    return items.to_arrow(compat_level=oldest), verdicts.to_arrow(compat_level=oldest)


def _cut(keys: pl.Series) -> Iterator[pl.Series]:
    """Yield the keys in batches, at least one."""
    yield keys[:BATCH]
    for start in range(BATCH, len(keys), BATCH):
        yield keys[start : start + BATCH]


def _find_tokens(keys: pl.Series) -> pl.Series:
    """Return the distinct tokens in these keys: secrets unless several users have them."""
    found = [pl.Series(dtype=pl.String)]
    for batch in _cut(keys):
        long = batch.filter(batch.str.contains(_LONG))
        found.append(pl.Series([token for key in long for token in find_tokens(key)], dtype=pl.String))
    return pl.concat(found).unique()


def _make_plain(keys: pl.Series, rules: UrlRules) -> pl.Series:
    """Return the items of plain URLs: the item of the host, made once per host, and the kept part of the path."""
    scheme, _, host, path = pl.DataFrame({"key": keys}).select(pl.col("key").str.splitn("/", 4)).unnest("key")
    origins = scheme + "//" + host
    distinct = origins.unique()
    hosts = pl.Series([canonical_item(origin, rules) for origin in distinct], dtype=pl.String)
    path = path.fill_null("").str.strip_chars_end("/")
    if rules.granularity == "host":
        return origins.replace_strict(distinct, hosts)
    if rules.granularity == "prefix":
        path = path.str.split("/").list.head(rules.prefix_depth).list.join("/")
    return origins.replace_strict(distinct, hosts) + path
