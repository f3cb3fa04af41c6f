"""The layouts of known systems: layouts.toml, and a person's own in the setting `ingest.layouts`.

A log has a layout if exactly one fits its fields, or if one fits most of its first lines; else it has none.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import polars as pl

from surf2vec.tasks.config import IngestConfig, Layout
from surf2vec.trainer.errors import ConfigError

REQUIRED = ("user", "url", "time")
NO_LAYOUT = Layout.model_construct()


@cache
def _read() -> tuple[dict[str, Layout], dict[str, list[str]]]:
    """Return the layouts of layouts.toml, with the parts of regular expressions filled in, and the usual names."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    parts, usual = content.pop("parts"), content.pop("usual")
    for entry in content.values():
        while part := re.search("<<([a-z]+)>>", entry.get("lines", "")):
            entry["lines"] = entry["lines"].replace(part[0], parts[part[1]])
    return {name: Layout.model_validate(entry) for name, entry in content.items()}, usual


def list_layouts(config: IngestConfig) -> dict[str, Layout]:
    """Return the layouts that a log may have, by name: all, or that of `ingest.layout`. Raises ConfigError without that one."""
    known = config.layouts | _read()[0] | config.layouts  # one's own come first
    if not config.layout:
        return known
    if config.layout not in known:
        raise ConfigError(f"ingest.layout is {config.layout!r}: there are {', '.join(known)}")
    return {config.layout: known[config.layout]}


def describe_fields(layout: Layout, columns: Mapping[str, str | None] | None = None) -> str:
    """Return which field is the user, the page and the time, for people: of a log with these columns, or by all names."""
    words = {"user": "user", "page": "url", "time": "time"}
    named = {word: columns[role] if columns else " or ".join(getattr(layout, role)) for word, role in words.items()}
    return layout.fields or ", ".join(f"{word} {name}" for word, name in named.items() if name)


@cache
def usual_names(role: str) -> tuple[str, ...]:
    """Return all names that a field with this role usually has, the likeliest first."""
    layouts, usual = _read()
    return tuple(
        dict.fromkeys([*usual.get(role, ()), *(name for one in layouts.values() for name in getattr(one, role))])
    )


def find_by_fields(header: Iterable[str], config: IngestConfig) -> Layout | None:
    """Return the layout that fits the names of a log's fields, a person's own before others; None if none does, or several."""
    names = set(header)
    fitting = [
        layout
        for layout in list_layouts(config).values()
        if not layout.lines
        and names.issuperset(layout.needs)
        and all(names.intersection(found) for role in REQUIRED if (found := getattr(layout, role)))
    ]
    fitting = [layout for layout in fitting if layout in config.layouts.values()] or fitting
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
