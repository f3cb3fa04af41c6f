"""The distinct URLs of a source as items, all at once: most are canonical but for `www.`, capitals in the host, its port and
slashes at the end, which whole columns are rid of; `tasks/urls.py` does the others one by one, and would make the same of
all.
"""

import polars as pl

from tasks.urls import ASSET_PATTERN, UrlRules, canonical_item


def canonical_items(page_keys: pl.Series, rules: UrlRules) -> pl.Series:
    """What `canonical_item` makes of each; null of null."""
    whole = f"^(?:{rules.canonical_pattern})$"
    rows = pl.DataFrame({"key": page_keys}).with_row_index("row")
    rows = rows.with_columns(item=_strip_www(pl.col("key")))
    is_done = rows["item"].str.contains(whole).fill_null(True)
    rest = rows.filter(~is_done).with_columns(item=_lower_host(pl.col("key")))
    is_short = rest["item"].str.contains(whole).fill_null(False)
    others = rest.filter(~is_short)["row"]
    items = rows["item"].scatter(rest["row"], rest["item"])
    made = [canonical_item(key, rules) for key in page_keys.gather(others)]
    return items.scatter(others, pl.Series(made, dtype=pl.String))


def find_pages(page_keys: pl.Series, rules: UrlRules, drops_assets: bool) -> pl.DataFrame:
    """(item, verdict) of each of distinct page keys; the verdict says why it is no page, null where it is one."""
    pages = pl.DataFrame({"key": page_keys, "item": canonical_items(page_keys, rules)})
    is_asset = pl.col("key").str.extract("^([^?#]*)").str.contains(ASSET_PATTERN) if drops_assets else pl.lit(False)
    verdict = (
        pl.when(pl.col("key").is_null() | (pl.col("key").str.strip_chars(" ") == ""))
        .then(pl.lit("no URL"))
        .when(is_asset)
        .then(pl.lit("static asset"))
        .when(pl.col("item").is_null())
        .then(pl.lit("not a page"))
    )
    return pages.select("item", verdict=verdict)


def _strip_www(url: pl.Expr) -> pl.Expr:
    return (
        pl.when(url.str.starts_with("https://www."))
        .then(pl.lit("https://") + url.str.slice(12))
        .when(url.str.starts_with("http://www."))
        .then(pl.lit("http://") + url.str.slice(11))
        .otherwise(url)
    )


def _lower_host(url: pl.Expr) -> pl.Expr:
    """A URL, its host in small letters, without the scheme's own port, `www.` and slashes at the end; null for other texts."""
    parts = url.str.splitn("/", 4).struct  # scheme, nothing, host, path
    scheme, host, path = (parts.field(f"field_{number}") for number in (0, 2, 3))
    port = pl.when(scheme == "https:").then(pl.lit(":443")).otherwise(pl.lit(":80"))
    host = host.str.to_lowercase().str.strip_suffix(port)
    lowered = pl.concat_str(scheme, pl.lit("//"), host, pl.lit("/"), path)
    is_url = url.str.starts_with("https://") | url.str.starts_with("http://")
    return pl.when(is_url).then(_strip_www(lowered).str.strip_chars_end("/"))
