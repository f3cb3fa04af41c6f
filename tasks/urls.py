"""From a URL to an item: the one place with the rules. `canonical_item` is their definition.

A compiled pass over distinct URLs (`tasks/compiled_pages.py`) makes the same of those that are simple, and leaves the others
to `canonical_item`. The rules, in order:

* not a page: `about:`, `javascript:`, `data:`, `mailto:`, `chrome:` and the like have no item.
* a URL (`scheme://host/path`): scheme and host in lower case, user and password dropped (they are secrets), default port
  dropped, leading `www.` dropped, dot segments resolved, percent-encoding canonical, index page and trailing slash
  dropped (the root stays `/`), fragment dropped, query dropped but for the keys kept. The scheme stays.
* a path (`/a/b`): brought into the normal form of RFC 3986 (dot segments, percent-encoding), fragment and query dropped as
  above, and nothing else: a log of paths gets its paths back.
* anything else is a page id and passes unchanged, but for a `?key=value` part, which may carry what must not be learnt.

Percent-encoding is canonical when unreserved characters are plain, the others that must be encoded are, as UTF-8, and
hex digits are upper case.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote

DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_NO_PAGE = re.compile(
    r"(?:about|android-app|blob|brave|chrome|chrome-devtools|chrome-error|chrome-extension|data|devtools|edge|file|"
    r"ios-app|jar|javascript|mailto|moz-extension|ms-browser-extension|opera|resource|safari-extension|"
    r"safari-web-extension|sms|tel|view-source|vivaldi|vbscript|wyciwyg):(?=\S)",
    re.IGNORECASE,
)
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)[^:]*(?::(.*))?", re.DOTALL)  # an IPv6 address has colons of its own
_PATH = re.compile(r"(/[^?#]*)(?:\?([^#]*))?")
_ID_QUERY = re.compile(r"\?([\w.%\[\]~-]+=[^#]*)")
_INDEX_PAGE = re.compile(r"/(?:index|default)\.(?:html?|xhtml|shtml|php\d?|aspx?|jsp|cfm|cgi|pl)\Z", re.IGNORECASE)
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SAFE = "!$&'()*+,;=:@/%"  # beside the unreserved: what may stand in a path as it is
_CLEAN = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/]*")
_CLEAN_QUERY = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/?]*")

# Files that a browser fetches by itself, by the extension of the path.
ASSET_PATTERN = (
    r"(?i)\.(?:css|js|mjs|map|json|gif|jpe?g|jfif|png|apng|ico|cur|svg|webp|avif|bmp|tiff?|xbm|woff2?|ttf|otf|eot|"
    r"mp3|ogg|wav|m4a|flac|mp4|m4v|webm|avi|mov|mpe?g|wmv|flv|swf)$"
)
# Agents that say what they are. CUBOT makes telephones.
CRAWLER_PATTERN = (
    r"(?i)(?:^|[^u]|[^c]u)bot|crawl|spider|slurp|archiver|scrap(?:er|y)|fetcher|feed|rss|monitor|uptime|pingdom|"
    r"lighthouse|headless|phantomjs|selenium|mediapartners|facebookexternalhit|validator|checker|"
    r"^(?:curl|wget|python|java|ruby|perl|php|go-http|okhttp|axios|node|libwww|lwp|apache-httpclient)\b"
)


@dataclass(frozen=True)
class UrlRules:
    """The settings of the rules: what is kept of a path, and which query keys tell pages apart."""

    granularity: Literal["page", "prefix", "host"] = "page"
    prefix_depth: int = 1
    keep_query: tuple[str, ...] = ()


def canonical_item(url: str, rules: UrlRules) -> str | None:
    """The item of a URL, a path or a page id; None for what is not a page. Idempotent."""
    text = url.strip()
    if _NO_PAGE.match(text):
        return None
    if match := _URL.match(text):
        return _url_item(match, rules)
    if match := _PATH.match(text):
        path = _resolve_dots(_encode(match[1].rstrip(), _CLEAN))
        return _cut_path(path, rules) if rules.granularity != "page" else path + _keep_query(match[2], rules)
    return _page_id(url, rules)


def _url_item(match: re.Match[str], rules: UrlRules) -> str | None:
    scheme = match[1].lower()
    host = _canonical_host(scheme, match[2])
    if not host:
        return None
    path = _drop_index(_resolve_dots(_encode(match[3].rstrip(), _CLEAN)) or "/")
    if rules.granularity != "page":
        return f"{scheme}://{host}{_drop_index(_cut_path(path, rules))}"
    return f"{scheme}://{host}{path}{_keep_query(match[4], rules)}"


def _canonical_host(scheme: str, authority: str) -> str:
    """Host and port, the port only where it is not the scheme's own; empty where there is no host."""
    match = _HOST.match(authority.rpartition("@")[2].strip())
    host, port = (match[1].lower(), match[2] or "") if match else ("", "")
    if not host.isascii():
        host = _encode_international(host)
    if not host.startswith("["):
        host = _encode(host, _CLEAN).lower()
    host = host.rstrip(".")
    while host.startswith("www.") and "." in host[4:]:
        host = host[4:]
    port = port.lstrip("0") if port.isascii() and port.isdigit() else ""
    return f"{host}:{port}" if host and port and port != DEFAULT_PORTS.get(scheme) else host


def _encode_international(host: str) -> str:
    """The ASCII form of an international host name, where it has one."""
    try:
        return host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return host


def _encode(text: str, clean: re.Pattern[str]) -> str:
    """`text` in canonical percent-encoding; nothing to do where all of it is `clean`."""
    if clean.fullmatch(text):
        return text
    return quote(_ESCAPE.sub(_canonical_escape, text), safe=_SAFE if clean is _CLEAN else _SAFE + "?")


def _canonical_escape(match: re.Match[str]) -> str:
    if match[1] is None:
        return "%25"
    byte = int(match[1], 16)
    return chr(byte) if byte in _UNRESERVED else f"%{byte:02X}"


def _resolve_dots(path: str) -> str:
    """`path` without `.` and `..` segments (RFC 3986, 5.2.4)."""
    if "/." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _drop_index(path: str) -> str:
    """`path` without trailing slashes and index pages; `/` for the root."""
    while True:
        shorter = _INDEX_PAGE.sub("", path.rstrip("/"))
        if shorter == path or not shorter:
            return shorter or "/"
        path = shorter


def _cut_path(path: str, rules: UrlRules) -> str:
    """The first `prefix_depth` parts of a path, or none of them for granularity host."""
    depth = rules.prefix_depth if rules.granularity == "prefix" else 0
    return "/" + "/".join(path.split("/")[1 : 1 + depth]).rstrip("/")


def _keep_query(query: str | None, rules: UrlRules) -> str:
    """`?` and the kept keys of a query in canonical encoding, sorted by key; empty when none is there."""
    if not query or not rules.keep_query:
        return ""
    pairs = []
    for pair in query.split("&"):
        key = unquote(pair.partition("=")[0])
        if key in rules.keep_query:
            pairs.append((key, _encode(pair, _CLEAN_QUERY)))
    return "?" + "&".join(pair for _, pair in sorted(pairs, key=lambda pair: pair[0])) if pairs else ""


def _page_id(text: str, rules: UrlRules) -> str | None:
    match = _ID_QUERY.search(text)
    if match is None:
        return text
    kept = _keep_query(match[1], rules) if rules.granularity == "page" else ""
    return text[: match.start()] + kept or None
