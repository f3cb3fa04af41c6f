"""What a page is called on a map or in a list: the shortest ending of its URL that a person recognises.

For display only. An item stays its canonical URL everywhere else.
"""

import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote

from tasks.root.wording import shown

MAX_URL_CHARS = 300
MAX_PARTS = 6
_SCHEME = re.compile(r"^[a-z][a-z0-9+.\-]*://", re.IGNORECASE)
_EXTENSION = re.compile(r"(?<=[^./])\.(?:s?html?|php\d?|aspx?|jsp|cgi|txt)$", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")
OTHER = "elsewhere"


def page_parts(url: str) -> list[str]:
    """The host, if there is one, and the parts of the path, percent-decoded and printable; at least one."""
    bare = _SCHEME.sub("", url[:4096])
    parts = [shown(unquote(part)).strip() for part in bare.split("/")]
    return [part for part in parts if part] or ["/"]


def short_names(urls: Sequence[str], max_chars: int) -> list[str]:
    """A name for each URL: the shortest of its names that says something and is unique among `urls`."""
    choices = [names_of(url) for url in urls]
    for _ in range(MAX_PARTS):
        times = Counter(names[0] for names in choices)
        choices = [
            names[1:] if len(names) > 1 and (times[names[0]] > 1 or not _LETTER.search(names[0])) else names
            for names in choices
        ]
    return [shorten(names[0], max_chars) for names in choices]


def names_of(url: str) -> list[str]:
    """Names for a page, the shortest first: `lemon-tart`, `recipes/lemon-tart`, `kitchen/…/lemon-tart`, and so on.

    A host stands whole when it is all there is, and else for short: `www.kitchen.example` is `kitchen`.
    """
    parts = page_parts(url)
    has_host = bool(_SCHEME.match(url)) or ("." in parts[0] and not url.startswith("/"))
    if has_host and len(parts) > 1:
        host = parts[0].removeprefix("www.")
        parts[0] = host.rsplit(".", 1)[0]
    names = ["/".join(parts[-depth:]) for depth in range(1, min(len(parts), MAX_PARTS) + 1)]
    if has_host and len(parts) >= 3:
        names[2 : 2 + (len(parts) == 3)] = [f"{parts[0]}/…/{parts[-1]}"]  # of three parts in place of all
    return [_EXTENSION.sub("", name).replace("_", " ").strip() or name for name in names]


def shorten(name: str, max_chars: int) -> str:
    """`name` within `max_chars`, its middle left out when need be: endings often tell pages apart."""
    if len(name) <= max_chars:
        return name
    tail = max_chars // 3
    return f"{name[: max_chars - tail - 1].rstrip()}…{name[-tail:].lstrip()}"


def shown_url(url: str) -> str:
    """The URL as it is, printable and cut to a length that a tooltip can hold."""
    return shorten(shown(url[: MAX_URL_CHARS * 4]), MAX_URL_CHARS)


def sections(urls: Sequence[str], max_sections: int) -> list[str] | None:
    """The site or section of each page, or None when URLs do not tell: all in one, or scattered over too many.

    The first depth of the URL that tells is taken: the host, or one of the first two directories. Sections beyond
    the `max_sections` with most pages are OTHER.
    """
    folders = [page_parts(url)[:-1] if "/" in url else [] for url in urls]
    for depth in (1, 2, 3):
        names = ["/".join(parts[:depth]) if len(parts) >= depth else OTHER for parts in folders]
        biggest = dict(Counter(name for name in names if name != OTHER).most_common(max_sections))
        is_told = len(biggest) >= 2 and max(biggest.values()) <= 0.8 * len(names)
        if is_told and sum(biggest.values()) >= 0.6 * len(names):
            return [name if name in biggest else OTHER for name in names]
    return None
