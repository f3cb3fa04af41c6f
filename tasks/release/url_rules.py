"""Turns a URL into an item, by the WHATWG URL standard and the project's own rules, listed in docs/urls.md.

ada-url parses scheme, host, port, dot segments and backslashes as browsers do. `canonical_item` defines the rest.

MLflow copies this file beside the registered model. So it imports ada-url and numpy only.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
from ada_url import normalize_url
from numpy.typing import NDArray

MAX_URL_BYTES = 8192
_NO_PAGE = re.compile(
    r"(?:about|android-app|blob|brave|chrome|chrome-devtools|chrome-error|chrome-extension|data|devtools|edge|file|"
    r"ios-app|jar|javascript|mailto|moz-extension|ms-browser-extension|opera|resource|safari-extension|"
    r"safari-web-extension|sms|tel|view-source|vivaldi|vbscript|wyciwyg):(?=\S)",
    re.IGNORECASE,
)
_NO_URL = ("", "-")  # how logs write a missing page
_IS_URL = re.compile(r"(?:https?|wss?|ftp):[/\\]|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PARSED = re.compile(r"([^:]+)://(?:[^/@]*@)?(\[[^\]]*\]|[^/:]*)(:[0-9]+)?(.*)")
_ANY_HOST = "http://h"
_ID_QUERY = re.compile(r"\?([\w.%\[\]~-]+=[^#]*)")
INDEX_PAGE = r"(?i)/(?:index|default)\.(?:html?|xhtml|shtml|php\d?|aspx?|jsp|cfm|cgi|pl)$"
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SAFE = "!$&'()*+,;=:@/%"  # allowed in a path without encoding, besides the unreserved
_CLEAN = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/]*")
_CLEAN_QUERY = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/?]*")

# Masked secrets. An e-mail address extends over the whole run of characters that may be part of one.
_SESSION = re.compile(r"(?:;|%3B)jsessionid(?:=|%3D)[^/;?#]*", re.IGNORECASE)
_RUN = r"[^/@\s;,()]"
_EMAIL = re.compile(
    rf"(?<!{_RUN}){_RUN}+(?:@|%40)(?:[^/@\s;,:()=.]+\.)+(?:xn--[a-z0-9-]+|[a-z]{{2,}}){_RUN}*", re.IGNORECASE
)
_JWT = re.compile(r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){1,3}\.[A-Za-z0-9_-]*")
TOKEN_PATTERN = r"(?:[A-Za-z0-9_+=-]|%2[BFbf]|%3[Dd]){32,}"  # hex or base64, as RE2 reads it too
_TOKEN = re.compile(TOKEN_PATTERN)
_HEX = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_CHANGE = re.compile(r"(?<=[a-z])[A-Z]|(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")
_CHARACTERS_PER_CHANGE = 6  # words have fewer changes; so does one of several hundred random base64 tokens


@dataclass(frozen=True)
class UrlRules:
    """The settings of the rules: the kept part of a path, the query keys that distinguish pages, the masking of secrets."""

    granularity: Literal["page", "prefix", "host"] = "page"
    prefix_depth: int = 1
    keep_query: tuple[str, ...] = ()
    mask_secrets: bool = True

    @classmethod
    def of_record(cls, rules: Mapping[str, Any]) -> "UrlRules":
        """Return the rules that sources.json or a release's manifest has. Raises KeyError or TypeError if these are none."""
        return cls(rules["granularity"], rules["prefix_depth"] or 1, tuple(rules["keep_query"]), rules["mask_secrets"])


def canonical_item(url: str, rules: UrlRules, shared: frozenset[str] = frozenset()) -> str | None:
    """Return the item of a URL, a path or a page id, or None if it is not a page. Idempotent.

    shared: tokens (of `find_tokens`) that are not secrets, as several users have them.
    """
    text = url.strip()
    if text in _NO_URL or _NO_PAGE.match(text):
        return None
    start, _, query = text.partition("#")[0].partition("?")
    start = start.rstrip()
    if _IS_URL.match(text):
        return _url_item(start, query, rules, shared)
    if text.startswith("/"):
        path = _clean_path(_parse(_ANY_HOST + start)[len(_ANY_HOST) :], rules, shared)
        return _cut_path(path, rules) if rules.granularity != "page" else path + _keep_query(query, rules)
    return _page_id(url, rules, shared)


def find_tokens(url: str) -> list[str]:
    """Return possible secrets in a URL or a path: 32 or more characters of hex or base64. Those of several users are none.

    Base64 differs from words by many changes from small letters to capitals, and between letters and digits.
    """
    start = re.split("[?#]", url, maxsplit=1)[0]
    return [match[0] for match in _TOKEN.finditer(start, max(0, start.find("/"))) if _is_token(match[0])]


def _is_token(run: str) -> bool:
    return bool(_HEX.search(run)) or len(_CHANGE.findall(run)) * _CHARACTERS_PER_CHANGE >= len(run)


def _parse(url: str) -> str:
    """Return a URL as browsers normalise it; empty if they refuse it."""
    try:
        return normalize_url(url)
    except ValueError:
        return ""


def _url_item(start: str, query: str, rules: UrlRules, shared: frozenset[str]) -> str | None:
    """Return the item of a URL; `start` is the part before the query."""
    match = _PARSED.match(_parse(start))
    if not match or not match[2].strip("."):
        return None
    scheme, host, port, path = match.groups(default="")
    if host.endswith("."):
        return _url_item(f"{scheme}://{host.rstrip('.')}{port}{path}", query, rules, shared)
    while host.startswith("www.") and "." in host[4:]:
        host = host[4:]
    path = _drop_index(_clean_path(path, rules, shared))
    if rules.granularity != "page":
        return f"{scheme}://{host}{port}{_drop_index(_cut_path(path, rules))}"
    return f"{scheme}://{host}{port}{path}{_keep_query(query, rules)}"


def _clean_path(path: str, rules: UrlRules, shared: frozenset[str]) -> str:
    """Return a path in canonical encoding with secrets masked, parsed again if a session id hid a dot segment."""
    encoded = _encode(path, _CLEAN)
    masked = _mask(encoded, rules, shared)
    if masked == encoded or "/." not in masked:
        return masked
    return _clean_path(_parse(_ANY_HOST + masked)[len(_ANY_HOST) :], rules, shared)


def _encode(text: str, clean: re.Pattern[str]) -> str:
    """Return `text` in canonical percent-encoding, unchanged if it matches `clean`.

    Decodes unreserved characters, encodes others as UTF-8 where needed, and writes hex digits in upper case.
    """
    if clean.fullmatch(text):
        return text
    return quote(_ESCAPE.sub(_canonical_escape, text), safe=_SAFE if clean is _CLEAN else _SAFE + "?")


def _canonical_escape(match: re.Match[str]) -> str:
    if match[1] is None:
        return "%25"
    byte = int(match[1], 16)
    return chr(byte) if byte in _UNRESERVED else f"%{byte:02X}"


def _mask(text: str, rules: UrlRules, shared: frozenset[str] = frozenset()) -> str:
    """Return a path or a page id without session ids, and with e-mail addresses and tokens as `(email)` and `(token)`.

    Hex and base64 tokens are masked only after a slash: a page id may be a hash.
    """
    if not rules.mask_secrets:
        return text
    if ";" in text or "%3B" in text or "%3b" in text:
        text = _SESSION.sub("", text)
    text = _mask_personal(text)
    slash = text.find("/")
    if slash < 0 or len(text) - slash <= 32:
        return text

    def replace(match: re.Match[str]) -> str:
        if match[0] in shared or not _is_token(match[0]):
            return match[0]
        is_in_escape = text[slash + match.start() - 1] == "%"  # its first two characters are of an encoded character
        return match[0][:2] + "(token)" if is_in_escape else "(token)"

    return text[:slash] + _TOKEN.sub(replace, text[slash:])


def _mask_personal(text: str) -> str:
    """Return a path, page id or value with e-mail addresses and JSON web tokens masked: they are always secrets."""
    if "eyJ" in text:
        text = _JWT.sub("(token)", text)
    return _EMAIL.sub("(email)", text) if "@" in text or "%40" in text else text


def _drop_index(path: str) -> str:
    """Return `path` without trailing slashes and index pages, `/` for the root."""
    while True:
        shorter = re.sub(INDEX_PAGE, "", path.rstrip("/"))
        if shorter == path or not shorter:
            return shorter or "/"
        path = shorter


def _cut_path(path: str, rules: UrlRules) -> str:
    """Return the first `prefix_depth` parts of a path, or `/` for granularity host."""
    depth = rules.prefix_depth if rules.granularity == "prefix" else 0
    return "/" + "/".join(path.split("/")[1 : 1 + depth]).rstrip("/")


def _keep_query(query: str, rules: UrlRules) -> str:
    """Return `?` and the kept keys of a query in canonical encoding, sorted by key, or an empty text without any."""
    if not query or not rules.keep_query:
        return ""
    pairs = []
    for pair in query.split("&"):
        key = unquote(pair.partition("=")[0])
        if key in rules.keep_query:
            name, is_pair, value = _encode(pair, _CLEAN_QUERY).partition("=")
            pairs.append((key, name + is_pair + (_mask_personal(value) if rules.mask_secrets else value)))
    return "?" + "&".join(pair for _, pair in sorted(pairs, key=lambda pair: pair[0])) if pairs else ""


def _page_id(text: str, rules: UrlRules, shared: frozenset[str]) -> str | None:
    """Return a page id with secrets masked. Of a `?key=value` part, which may have personal data, only kept keys stay.

    What is left may be a URL, or no page.
    """
    match = _ID_QUERY.search(text)
    kept = _keep_query(match[1], rules) if match and rules.granularity == "page" else ""
    left = _mask(text[: match.start()] if match else text, rules, shared) + kept
    return left if left == text else canonical_item(left, rules, shared)


class FoundPages(NamedTuple):
    """Pages of n users, one after another: rows intp[m], the numbers of their items, -1 if unknown; ends intp[n+1]."""

    rows: NDArray[np.intp]
    ends: NDArray[np.intp]

    def count_unknown(self) -> NDArray[np.intp]:
        """Return the number of each user's pages that the release does not know, intp[n]."""
        return np.diff(np.concatenate(([0], np.cumsum(self.rows < 0)))[self.ends])

    def list_known(self) -> list[NDArray[np.intp]]:
        """Return the items of each user's pages that the release knows, in order."""
        return np.split(self.rows[self.rows >= 0], np.cumsum(np.diff(self.ends) - self.count_unknown()))[:-1]


@dataclass(frozen=True)
class KnownItems:
    """The items of a release, which tell what a URL is that the rules alone cannot: numbers has the number of each."""

    numbers: dict[str, int]
    rules: UrlRules

    @classmethod
    def of_release(cls, manifest: Mapping[str, Any], items: list[str]) -> "KnownItems":
        return cls({item: number for number, item in enumerate(items)}, UrlRules.of_record(manifest["rules"]))

    def find(self, pages: Sequence[Sequence[str]], column: str = "pages") -> FoundPages:
        """Look up n lists of pages. Raises ValueError if they are no lists of strings; it names the row and no page."""
        check_pages(pages, column)
        ends = np.cumsum([0, *map(len, pages)])
        rows = np.fromiter(map(self.numbers.get, chain.from_iterable(pages), repeat(-1)), np.intp, ends[-1])
        if len(others := np.flatnonzero(rows < 0)):
            flat = list(chain.from_iterable(pages))
            made = {page: self.numbers.get(self.make_item(page) or "", -1) for page in {flat[at] for at in others}}
            rows[others] = [made[flat[at]] for at in others]
        return FoundPages(rows, ends)

    def make_item(self, page: str) -> str | None:
        """Return the item of a URL, a path or a page id, which need not be of the release; None if it is not a page.

        An item stays as it is. A token, which is a secret unless several users have it, stays if the release has it in an item.
        """
        if page in self.numbers:
            return page
        with suppress(UnicodeEncodeError):  # half of a pair of surrogates: no log has it
            if len(page.encode()) <= MAX_URL_BYTES:
                kept = self._tokens if self.rules.mask_secrets and find_tokens(page) else frozenset[str]()
                item = canonical_item(page, self.rules, kept)
                return canonical_item(page, self.rules) if kept and item not in self.numbers else item
        return None

    @cached_property
    def _tokens(self) -> frozenset[str]:
        return frozenset(token for item in self.numbers for token in find_tokens(item))


def check_pages(pages: Sequence[Any], column: str) -> None:
    """Raise ValueError unless all are lists of strings. The message has no page: a URL may be private."""
    lists = (list, tuple, np.ndarray)
    if all(issubclass(kind, lists) for kind in set(map(type, pages))):
        if all(issubclass(kind, str) for kind in set(map(type, chain.from_iterable(pages)))):
            return
        row = next(row for row, urls in enumerate(pages) if not all(isinstance(url, str) for url in urls))
        what = "has an entry that is not a string"
    else:
        row, given = next(one for one in enumerate(pages) if not isinstance(one[1], lists))
        what = f"is {'null' if given is None or isinstance(given, float) else f'of type {type(given).__name__}'}"
    raise ValueError(f"{column} in row {row:,} {what}: give a list of URLs, oldest first, empty if there are none")
