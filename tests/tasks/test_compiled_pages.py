"""The compiled pass over pages: what it makes is what the rules make, and it makes most of them."""

import re
import string

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tasks.compiled_pages import ALL_PARTS, BLOCK, find_extensions, write_items
from tasks.urls import ASSET_PATTERN, UrlRules, canonical_item

# The strict forms of what is its own item.
C = r"[A-Za-z0-9_~!$&'()*+,;=:@-]"
SEGMENT = rf"{C}(?:{C}|\.)*"
LAST_SEGMENT = rf"(?:[A-CE-HJ-Za-ce-hj-z0-9_~!$&'()*+,;=:@-](?:{C}|\.)*|[DIdi]{C}*)"  # no index or default page
NOT_WWW = r"(?:[a-vx-z0-9][a-z0-9-]*|w(?:[a-vx-z0-9-][a-z0-9-]*)?|ww(?:[a-vx-z0-9-][a-z0-9-]*)?|www[a-z0-9-]+)"
CANONICAL = (
    rf"https?://{NOT_WWW}(?:\.[a-z0-9-]+)+(?:/|(?:/{SEGMENT})*/{LAST_SEGMENT})"
    rf"|/|(?:/{SEGMENT})+/?"
    r"|[A-Za-z0-9_.-]+"
)
INDEX_EXTENSIONS = "html htm xhtml shtml php aspx asp jsp cfm cgi pl"
LONG = "a-long/part" * 12
RULES = [
    (UrlRules("host"), 0),
    (UrlRules("prefix", 1), 1),
    (UrlRules("prefix", 2), 2),
    (UrlRules(keep_query=("b",)), ALL_PARTS),
]
PARTS = ["/", "/a", "/B.html", ".", "/.", "..", "/index.html", "/Default.ASPX", "/index", "/i.x", LONG]
PAGES = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["https://", "http://", "HTTPS://", "http:/", "httpfoo", "ftp://", "", "", "/", "about:", " "]),
    st.sampled_from(["www.", "WWW.", "www.www.", "wWw.wWW.www.", "a.example", "B.example", "w" * 45, ""]),
    st.text("aAwWzZ09.:@_-~ä\0", max_size=5) | st.sampled_from([":80", ":443", ":8080", ":080", ":", ":80:80", ".:80"]),
    st.lists(st.sampled_from(PARTS), max_size=6).map("".join),
    st.just("") | st.text("/.aI?#%2: ä\n\0\x1f\x7f[\\", max_size=6),
)


def make_simple(texts: list[str], depth: int = ALL_PARTS) -> list[str | None]:
    """What the pass makes of each; None of those that it leaves."""
    encoded = [text.encode() for text in texts]
    bounds = np.cumsum([0, *map(len, encoded)])
    data = np.frombuffer(b"".join(encoded).ljust(BLOCK), dtype=np.uint8)
    items = np.empty(bounds[-1] + len(texts), dtype=np.uint8)
    ends = np.empty_like(bounds)
    write_items(data, bounds, depth, items, ends)
    made = [items[ends[i] : ends[i + 1]].tobytes().decode() for i in range(len(texts))]
    return [item or None for item in made]


def test_simple_pages() -> None:
    items = {
        "https://a.example/b/c.html": "https://a.example/b/c.html",
        "http://a.example": "http://a.example/",
        "http://a.example///": "http://a.example/",
        "http://localhost/b//c/": "http://localhost/b//c",
        "https://www.a.example/b": "https://a.example/b",
        "https://WwW.www.A.example/B/": "https://a.example/B",
        "https://www.example/b": "https://www.example/b",
        "https://wwww.example/www.b": "https://wwww.example/www.b",
        "https://a.example:443/b": "https://a.example/b",
        "http://a.example:80": "http://a.example/",
        "http://a.example:/b": "http://a.example/b",
        "http://a.example:443/b": "http://a.example:443/b",
        "https://www.A.example:8080/b": "https://a.example:8080/b",
        "https://a.example/indexes.html": "https://a.example/indexes.html",
        "https://a.example/index.html/b": "https://a.example/index.html/b",
        "https://a.example/index": "https://a.example/index",
        "https://a.example/b/index.html": "https://a.example/b",
        "https://a.example/DEFAULT.Aspx/index.PHP5//": "https://a.example/",
        "https://a.example/index.html5": "https://a.example/index.html5",
        "https://a.example/index.php55": "https://a.example/index.php55",
        "https://a.example/index.": "https://a.example/index.",
        f"https://www.a.example/{LONG}/": f"https://a.example/{LONG}",
        "/": "/",
        "/b/": "/b/",
        "//b/index.html": "//b/index.html",
        f"/{LONG}": f"/{LONG}",
        "214536502": "214536502",
        "www.a.example/": "www.a.example/",
        "http": "http",
        "a/.b": "a/.b",
    }
    assert dict(zip(items, make_simple(list(items)), strict=True)) == items
    assert [make_simple([text]) for text in items] == [[item] for item in items.values()]


def test_what_is_not_simple_is_left() -> None:
    texts = [
        "", " ", "https://", "http:///b", "https://:443/", "https://a.example./", "https://a.example:0443/",
        "https://u:p@a.example/", "https://u:1@a.example/", "https://[::1]/", "HTTPS://a.example/", "ftp://a.example/",
        "https://a.example/b/../c", "https://a.example/.b", f"https://a.example/{LONG[:63]}/..", "/./b", "/b/.",
        "https://a.example?b", "https://a.example/b#c",
        "/b?c=d", "/b%20c", "/b c", "/ä", "/b\n", "/\0", "b:c", "b?c=d", "ä", "about:blank", f"https://{'a' * 70}/",
    ]  # fmt: skip
    assert make_simple(texts) == [None] * len(texts)


@pytest.mark.parametrize(("form", "taken"), [
    ("/a{}b", string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@/"),
    ("https://a.example/a{}b", string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@/"),
    ("https://a{}b.example/", string.ascii_letters + string.digits + "-._/"),
    ("a{}b", string.ascii_letters + string.digits + "-._~!$&'()*+,;=@/"),
])  # fmt: skip
def test_every_character(form: str, taken: str) -> None:
    characters = [chr(number) for number in range(300)]
    made = make_simple([form.format(character) for character in characters])
    assert {character for character, item in zip(characters, made, strict=True) if item is not None} == set(taken)
    for character, item in zip(characters, made, strict=True):
        assert item in (None, canonical_item(form.format(character), UrlRules()))


@given(st.lists(st.from_regex(CANONICAL, fullmatch=True), min_size=1, max_size=4))
@example(["/wiki/a(b)"])
@example(["https://wwww.example.com/Index"])
def test_what_is_canonical_is_simple_and_its_own_item(pages: list[str]) -> None:
    for page in pages:
        host = re.match("https?://([^/]*)", page)
        assume(host is None or len(host[1]) <= 48)
    assert make_simple(pages) == pages
    assert [canonical_item(page, UrlRules()) for page in pages] == pages


@given(st.lists(PAGES, max_size=5), st.sampled_from([(UrlRules(), ALL_PARTS), *RULES]))
@example(["https://a.example/b", ".c"], (UrlRules(), ALL_PARTS))
@example([f"https://a.example{'/b' * 31}/", ".c/b"], (UrlRules(), ALL_PARTS))
@example([f"/{'b' * 62}/.c"], (UrlRules(), ALL_PARTS))
@example(["https://a.example/b/index.html/c"], (UrlRules("prefix", 2), 2))
@example(["https://a.example/b//c", "//b", "/b//", "https://a.example//b"], (UrlRules("prefix", 2), 2))
def test_simple_items_are_those_of_the_rules(pages: list[str], rules_and_depth: tuple[UrlRules, int]) -> None:
    rules, depth = rules_and_depth
    for page, item in zip(pages, make_simple(pages, depth), strict=True):
        assert item in (None, canonical_item(page, rules))


@pytest.mark.parametrize(
    "extension", [*INDEX_EXTENSIONS.split(), *INDEX_EXTENSIONS.upper().split(), "", "h", "tml", "ph", "php/"]
)
def test_index_pages(extension: str) -> None:
    pages = [
        f"https://a.example{path}.{extension}{more}"
        for path in ("/index", "/b/Default", "/b/myindex", "/index.htm/index", "/index.b")
        for more in ["", *string.digits, "x", "_", "@", "/", "//", "/b"]
    ]
    assert make_simple(pages) == [canonical_item(page, UrlRules()) for page in pages]


@pytest.mark.parametrize(("rules", "depth"), RULES)
def test_parts_of_paths_are_simple_too(rules: UrlRules, depth: int) -> None:
    pages = ["https://www.a.example/b/c/d", "https://a.example", "/b/c/d/", "/b", "/", "//b//c", "214536502", "b/c/d"]
    assert make_simple(pages, depth) == [canonical_item(page, rules) for page in pages]


@given(st.from_regex(ASSET_PATTERN.removesuffix("$"), fullmatch=True, alphabet=st.characters(codec="ascii")))
def test_assets_have_extensions(extension: str) -> None:
    texts = ["a.b/c", f"/logo{extension}", f"{extension}/abcdef", extension, ""]
    bounds = np.cumsum([0, *map(len, texts)])
    found = np.empty(len(texts), dtype=np.bool_)
    find_extensions(np.frombuffer("".join(texts).encode().ljust(BLOCK), dtype=np.uint8), bounds, found)
    assert found.tolist() == [True, True, False, True, False]
