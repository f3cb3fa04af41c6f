"""URLs drawn by a seed. Whatever they are, the whole-column way makes the item that the rules make of each; an item is its own
item; what SQL cuts off changes none; a URL opens the page in a browser that its item opens; no secret gets into an item.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from ada_url import URL

from surf2vec.sql.runner import create_macro
from surf2vec.tasks.ingest.make_items import find_pages
from surf2vec.tasks.release.url_rules import MAX_URL_BYTES, UrlRules, canonical_item
from tests.hostile.words import HASH, PLAIN_PAGES, WORDS

BATCH = 20_000
MOST_SECONDS = 0.5  # of a processor, for one URL of the greatest length
RULES = [
    UrlRules(), UrlRules(), UrlRules("host"), UrlRules("prefix", 2), UrlRules(keep_query=("id", "b")),
    UrlRules(mask_secrets=False),
]  # fmt: skip
SCHEMES = [
    "http://", "https://", "HTTPS://", "ftp://u:p@", "ws://", "wss:\\\\", "http:", "https:/", "http:///", "//", "/", "", "", "app://",
    "about:", "data:", "JavaScript:", "https://www.", "https://user:pw@", " http://", "http:\\\\", "file:///",
]  # fmt: skip
HOSTS = [
    "x.example", "www.x.example", "www.www.com", "WWW.B", "faß.de", "bücher.example", "xn--bcher-kva.example", "a..b", "1.2", 
    "0x7f.1", "[::1]", "[2001:DB8::1]", "[::1", "foo。example", "e%2Dx.com", "exa mple.com", ".", "..", "a.", "-", "%00",
    "\N{KELVIN SIGN}.example", "256.256.256.256", "1e5", "xn--", "xn--a", "a_b.example", "",
]  # fmt: skip
PORTS = ["", "", "", ":80", ":443", ":0443", ":8080", ":", ":99999", ":x", ":80:443"]
SEGMENTS = [
    "a", "B.html", "..", ".", "...", "%2e%2E", "%2E", "index.html", "Default.ASPX", "index", "_~-", "%7euser", "%", "%zz", "100%",
    "é", "世 界", "\t", "\n", "\\", "a;b=1", ";jsessionid=7", "j@b.example", "jane%40b.example", HASH, HASH.upper(),
    "eyJhbGciOiJ9.b.c", "i.x", "logo.png", "a:b", "(token)", "%25", "%252e", "+", "*", "", "", *WORDS,
]  # fmt: skip
ENDS = [
    "", "", "", "?", "?id=1", "?b=2&id=3&ID=4&id=2", "#x", "?id=%7e#y", "?token=x", "#a?b=1", "?q=<b>", "?id=a@b.example", " ",
]  # fmt: skip
LONG = [  # each grows with the square of its length in a careless regular expression or loop
    "a.", "@", "a@a.", "%40", "eyJaaaaaaaa.", ";jsessionid=", "/index.html", "../", "www.", "A1b2", "/", "%", "(", "a@b.c,",
    "=", " ", "?", "%2e/",
]  # fmt: skip


@dataclass
class Found:
    """What checking URLs came to. faults: what should never be, with its URL."""

    urls: int = 0
    items: int = 0
    opened: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, url: str, rules: UrlRules, *seen: Any) -> None:
        self.faults.append(f"{what}: {url!r} {rules}: {seen}"[:400])


def draw_url(draws: Random) -> str:
    """A URL of hostile parts; every eighth has characters changed, removed and repeated."""
    if draws.random() < 0.1:
        return draws.choice(PLAIN_PAGES) if draws.random() < 0.5 else draws.choice(WORDS)
    parts = "/".join(draws.choices(SEGMENTS, k=draws.randrange(5)))
    url = f"{draws.choice(SCHEMES)}{draws.choice(HOSTS)}{draws.choice(PORTS)}/{parts}{draws.choice(ENDS)}"
    if draws.random() < 0.2:
        url = f"/{parts}{draws.choice(ENDS)}"
    return change_text(draws, url) if draws.random() < 0.125 else url


def change_text(draws: Random, text: str) -> str:
    """The text with one to three characters replaced, removed or repeated."""
    for _ in range(draws.randint(1, 3)):
        at = draws.randrange(len(text) + 1)
        odd = chr(draws.choice([draws.randrange(1, 128), draws.randrange(0xA0, 0x2100), 0x1F98A]))
        end = at + draws.randrange(3)
        text = draws.choice([text[:at] + odd + text[end:], text[:at] + text[end:], text[:end] + text[at:]])
    return text


@contextmanager
def connect_with_cut() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that knows what SQL cuts off a URL."""
    with duckdb.connect() as con:
        create_macro(con, "staging/page_key", ("url", "keeps_query", "max_url_bytes"))
        yield con


def check_urls(num: int, seed: int, batch: int = BATCH) -> Found:
    """Check `num` URLs, in batches each with other rules."""
    found, draws = Found(), Random(seed)
    with connect_with_cut() as con:
        for start in range(0, num, batch):
            urls = [draw_url(draws) for _ in range(min(batch, num - start))]
            check_batch(con, urls, draws.choice(RULES), found)
    return found


def check_batch(con: duckdb.DuckDBPyConnection, urls: list[str], rules: UrlRules, found: Found) -> None:
    items = [make_item(url, rules, found) for url in urls]
    for url in urls[::8]:
        item = make_item(f"https://user:sesame@x.example/a?token=sesame#{url}", rules, found)
        if item not in ("https://x.example/a", "https://x.example/"):
            found.add("secret", url, rules, item)
    columns = find_pages(pa.array(urls, pa.string()), rules, False, lambda tokens: tokens[:0])[0].to_pylist()
    keys = cut_by_sql(con, urls, bool(rules.keep_query))
    for url, item, whole, key in zip(urls, items, columns, keys, strict=True):
        if whole != item:
            found.add("in columns", url, rules, item, whole)
        if key != url and canonical_item(key, rules) != item:
            found.add("cut by SQL", url, rules, item, key)
        if item is not None:
            check_item(url, item, rules, found)
        if re.match(r"\s*(?:https?|wss?|ftp)://", url, re.IGNORECASE) and rules.granularity == "page":
            open_page(url, item, rules, found)
    found.urls += len(urls)
    found.items += sum(item is not None for item in items)


def make_item(url: str, rules: UrlRules, found: Found) -> str | None:
    try:
        return canonical_item(url, rules)
    except Exception as error:
        found.add("traceback", url, rules, repr(error))
        return None


def cut_by_sql(con: duckdb.DuckDBPyConnection, urls: list[str], keeps_query: bool) -> list[str]:
    frame = pl.DataFrame({"url": urls}, {"url": pl.String}).with_row_index("n")
    con.register("drawn", frame.to_arrow())
    query = "select page_key(url, $keeps_query, $most) as key from drawn order by n"
    rows = con.execute(query, {"keeps_query": keeps_query, "most": MAX_URL_BYTES}).fetchall()
    return [key for (key,) in rows]


def check_item(url: str, item: str, rules: UrlRules, found: Found) -> None:
    if canonical_item(item, rules) != item:
        found.add("not its own item", url, rules, item, canonical_item(item, rules))
    if rules.mask_secrets and HASH in re.sub(r"^[^/]+//[^/]*|^[^/]*", "", item).casefold():
        found.add("token", url, rules, item)


def open_page(url: str, item: str | None, rules: UrlRules, found: Found) -> None:
    """A URL with a scheme of the web: its item opens in a browser where the URL does, at the same host and port.

    What is white or a control character before a query is dropped, by our own rule.
    """
    try:
        parsed = URL(re.sub(r"[\s\x00-\x1f]+$", "", re.split("[?#]", url)[0]))
    except ValueError:
        found.refused += 1
        if item is not None:
            found.add("no browser opens it", url, rules, item)
        return
    found.opened += 1
    if item is None:
        if parsed.hostname.strip("."):
            found.add("a browser opens it", url, rules, parsed.href)
        return
    opened = URL(item)
    is_host = parsed.hostname.endswith("..") or parsed.hostname.rstrip(".").endswith(opened.hostname)
    if (opened.protocol, opened.port) != (parsed.protocol, parsed.port) or not is_host:
        found.add("another page", url, rules, item, parsed.href)


def check_long(found: Found) -> None:
    """URLs as long as one may be, of pieces that make a careless rule slow."""
    for piece in LONG:
        for start, end in (("", ""), ("/", "@"), ("https://x.example/", "@x"), ("https://", ""), ("/a?", "=1")):
            url = (start + piece * MAX_URL_BYTES)[: MAX_URL_BYTES - len(end)] + end
            for rules in (RULES[0], RULES[4]):
                started = time.thread_time()
                make_item(url, rules, found)
                seconds = time.thread_time() - started
                found.slowest_seconds = max(found.slowest_seconds, seconds)
                if seconds > MOST_SECONDS:
                    found.add(f"{seconds:.2f} s", url[:60], rules)
            found.urls += 1


def check_standard(path: Path) -> Found:
    """The URLs of the standard's own tests (urltestdata.json): refused where it refuses, else the item of what it makes."""
    found, rules = Found(), RULES[0]
    for case in json.loads(path.read_text(encoding="utf-8")):
        if isinstance(case, str) or not re.match(r"\s*(?:https?|wss?|ftp):[/\\]{2}", case["input"], re.IGNORECASE):
            continue
        try:
            case["input"].encode()
        except UnicodeEncodeError:
            continue  # half of a pair of surrogates: such a line is no UTF-8
        found.urls += 1
        item = make_item(case["input"], rules, found)
        if case.get("failure"):
            found.refused += 1
            if item is not None:
                found.add("the standard refuses it", case["input"], rules, item)
            continue
        found.opened += 1
        expected = canonical_item(case["href"], rules)
        if expected and re.search(r"\s[?#]", case["input"]):
            expected = expected.removesuffix("%20")  # our own rule: white space before a query is dropped
        found.items += item is not None
        if item != expected:
            found.add("the standard opens another page", case["input"], rules, item, expected)
    return found
