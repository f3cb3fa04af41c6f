"""The layouts of known systems: layouts.toml, and a person's own in the setting `ingest.layouts`.

A log has a layout if exactly one fits its fields, or if one fits most of its first lines; else it has none.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from surf2vec.tasks.config import IngestConfig, Layout
from surf2vec.trainer.errors import ConfigError

REQUIRED = ("user", "url", "time")


@cache
def _read() -> dict[str, Any]:
    """Return the content of layouts.toml, with the parts of regular expressions filled in."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    parts = content.pop("parts")
    for entry in content.values():
        while part := re.search("<<([a-z]+)>>", entry.get("lines", "")):
            entry["lines"] = entry["lines"].replace(part[0], parts[part[1]])
    return content


def list_layouts(config: IngestConfig) -> dict[str, Layout]:
    """Return the layouts that a log may have, by name: all, or the one that `ingest.layout` names.

    Raises ConfigError if there is none of that name.
    """
    known = _read_layouts() | config.layouts
    if not config.layout:
        return known
    if config.layout not in known:
        raise ConfigError(f"ingest.layout is {config.layout!r}: there are {', '.join(known)}")
    return {config.layout: known[config.layout]}


@cache
def _read_layouts() -> dict[str, Layout]:
    return {name: Layout.model_validate(entry) for name, entry in _read().items() if name != "usual"}


def describe_fields(layout: Layout) -> str:
    """Return which field is the user, the page and the time, for people."""
    words = {"user": layout.user, "page": layout.url, "time": layout.time}
    return layout.fields or ", ".join(f"{word}: {' or '.join(names)}" for word, names in words.items())


@cache
def usual_names(role: str) -> tuple[str, ...]:
    """Return all names that a field with this role usually has, the likeliest first."""
    content = _read()
    names = [
        content["usual"].get(role, ()),
        *(entry.get(role, ()) for name, entry in content.items() if name != "usual"),
    ]
    return tuple(dict.fromkeys(name for one in names for name in ([one] if isinstance(one, str) else one)))


def find_by_fields(header: Iterable[str], layouts: Mapping[str, Layout]) -> Layout | None:
    """Return the layout that fits the names of a log's fields; None if none does, or several."""
    names = set(header)
    fitting = [
        layout
        for layout in layouts.values()
        if not layout.lines
        and names.issuperset(layout.needs)
        and all(names.intersection(getattr(layout, role)) for role in REQUIRED)
    ]
    return fitting[0] if len(fitting) == 1 else None


def find_by_lines(lines: Sequence[str], layouts: Mapping[str, Layout]) -> tuple[Layout | None, int]:
    """Return the layout that fits most of these lines, and how many: a line has the first that fits it."""
    known = [layout for layout in layouts.values() if layout.lines]
    fits = (pl.when(pl.col("line").str.contains(layout.lines)).then(at) for at, layout in enumerate(known))
    frame = pl.DataFrame({"line": lines}, schema={"line": pl.String})
    counts = Counter(frame.select(pl.coalesce(pl.lit(None), *fits)).to_series().drop_nulls())
    if not counts:
        return None, 0
    best = max(range(len(known)), key=counts.__getitem__)
    return known[best], counts[best]
