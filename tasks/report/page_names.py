"""Short names of pages for maps and lists: the shortest ending of the URL that a person recognises.

For display only. Everywhere else an item is its canonical URL.
"""

import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote

from surf2vec.tasks.root.wording import shown

MAX_URL_CHARS = 300
MAX_PARTS = 6
_SCHEME = re.compile(r"^[a-z][a-z0-9+.\-]*://", re.IGNORECASE)
_EXTENSION = re.compile(r"(?<=[^./])\.(?:s?html?|php\d?|aspx?|jsp|cgi|txt)$", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")
OTHER = "elsewhere"


def page_parts(url: str) -> list[str]:
    """Returns the host, if any, and the parts of the path, percent-decoded and printable; at least one part."""
    bare = _SCHEME.sub("", url[:4096])
    parts = [shown(unquote(part)).strip() for part in bare.split("/")]
    return [part for part in parts if part] or ["/"]


def short_names(urls: Sequence[str], max_chars: int) -> list[str]:
    """Returns a name for each URL: the shortest of its names that is meaningful and unique among `urls`."""
    choices = [names_of(url) for url in urls]
    for _ in range(MAX_PARTS):
        times = Counter(names[0] for names in choices)
        choices = [
            names[1:] if len(names) > 1 and (times[names[0]] > 1 or not _LETTER.search(names[0])) else names
            for names in choices
        ]
    return [shorten(names[0], max_chars) for names in choices]


def names_of(url: str) -> list[str]:
    """Returns names for a page, the shortest first: `lemon-tart`, `recipes/lemon-tart`, `kitchen/…/lemon-tart`, and so on.

    A URL that is only a host keeps it in full. Otherwise the host is shortened: `www.kitchen.example` becomes `kitchen`.
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
    """Returns `name` cut to `max_chars` in its middle, because pages often differ in their endings."""
    if len(name) <= max_chars:
        return name
    tail = max_chars // 3
    return f"{name[: max_chars - tail - 1].rstrip()}…{name[-tail:].lstrip()}"


def shown_url(url: str) -> str:
    """Returns the URL, made printable and cut to the length of a tooltip."""
    return shorten(shown(url[: MAX_URL_CHARS * 4]), MAX_URL_CHARS)


def sections(urls: Sequence[str], max_sections: int) -> list[str] | None:
    """Returns the site or section of each page; None if all pages are in one section or scattered over too many.

    Uses the first part of the URL that divides the pages: the host, or one of the first two directories. The
    `max_sections` largest sections keep their name; the others become OTHER.
    """
    folders = [page_parts(url)[:-1] if "/" in url else [] for url in urls]
    for depth in (1, 2, 3):
        names = ["/".join(parts[:depth]) if len(parts) >= depth else OTHER for parts in folders]
        biggest = dict(Counter(name for name in names if name != OTHER).most_common(max_sections))
        is_divided = len(biggest) >= 2 and max(biggest.values()) <= 0.8 * len(names)
        if is_divided and sum(biggest.values()) >= 0.6 * len(names):
            return [name if name in biggest else OTHER for name in names]
    return None
