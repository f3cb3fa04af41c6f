"""Short names of pages for maps and lists. Everywhere else an item is its canonical URL."""

import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote

from surf2vec.tasks.root.wording import shown

MAX_PARTS = 6
OTHER = "elsewhere"
_SCHEME = re.compile(r"^[a-z][a-z0-9+.\-]*://(?:www\.)?", re.IGNORECASE)
_EXTENSION = re.compile(r"(?<=[^./])\.(?:s?html?|php\d?|aspx?|jsp|cgi|txt)$", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")


def page_parts(url: str) -> list[str]:
    """Returns the host, if any, and the parts of the path, percent-decoded and printable; at least one part."""
    parts = [shown(unquote(part)).strip() for part in _SCHEME.sub("", url[:4096]).split("/")]
    return [part for part in parts if part] or ["/"]


def short_names(urls: Sequence[str], max_chars: int) -> list[str]:
    """Returns a name for each URL: the last part of its path, or the last few if fewer have no letter or are not unique."""
    parts, names = [page_parts(url) for url in urls], [""] * len(urls)
    for depth in range(1, MAX_PARTS + 1):
        times = Counter(names)
        names = [
            "/".join(of_page[-depth:]) if times[name] > 1 or not _LETTER.search(name) else name
            for name, of_page in zip(names, parts, strict=True)
        ]
    return [shorten(_EXTENSION.sub("", name).replace("_", " ").strip() or name, max_chars) for name in names]


def shorten(name: str, max_chars: int) -> str:
    """Returns `name` cut to `max_chars` in its middle, because pages often differ in their endings."""
    if len(name) <= max_chars:
        return name
    tail = max_chars // 3
    return f"{name[: max_chars - tail - 1].rstrip()}…{name[-tail:].lstrip()}"


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
