"""Formats values for people: numbers with separators and units, a dash for unknown values, and escaped text.

Ids and pages come from logs and are untrusted. Text for a terminal or a page goes through `shown`; files and JSON keep it
as it is.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surf2vec.tasks.root.credentials import map_texts, mask_credentials
from surf2vec.trainer.system.units import size

UNKNOWN = "–"
Number = int | float | None
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#!|~&])")


def format_count(value: Number) -> str:
    """1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def format_counted(value: Number, noun: str) -> str:
    """1 commit, 3 commits."""
    return f"{format_count(value)} {noun}{'' if value == 1 else 's'}"


def format_compact(value: Number) -> str:
    """1,234,567, but 20.0 M from ten million on."""
    if value is None or abs(value) < 10_000_000:
        return format_count(value)
    return f"{value / 1e6:,.1f} M" if abs(value) < 1e9 else f"{value / 1e9:,.2f} bn"


def format_short(value: float) -> str:
    """A few characters, for axes and rates: 950, 12 k, 1.25 M."""
    for unit, factor in ((" bn", 1e9), (" M", 1e6), (" k", 1e3)):
        if abs(value) >= factor * 0.9995:  # else 999,950 would read 1e+03 k
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def format_bytes(value: Number) -> str:
    """Bytes: 1.5 GB."""
    return UNKNOWN if value is None else size(int(value))


def format_duration(seconds: Number) -> str:
    """0.42 s, 12.3 s, 3 min 20 s, 2 h 05 min, 1 d 3 h."""
    if seconds is None:
        return UNKNOWN
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def format_percent(value: Number) -> str:
    """A share in per cent: 12.3 %; 0 % only for zero."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.0001:
        return "< 0.01 %"
    return f"{value:.2%}".replace("%", " %") if 0 < value < 0.01 else f"{value:.1%}".replace("%", " %")


def format_score(value: Number) -> str:
    """A metric between 0 and 1: 0.123."""
    if value is None:
        return UNKNOWN
    return f"{value:.4f}" if 0 < value < 0.01 else f"{value:.3f}"


def format_ratio(value: Number) -> str:
    """A ratio: 2.4 ×."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f} ×" if value >= 100 else f"{value:.2g} ×" if value < 1 else f"{value:.1f} ×"


def format_key(name: str) -> str:
    """A key as words: `too_many_events` → `too many events`."""
    return name.replace("_", " ").strip()


def format_value(name: str, value: Any) -> str:
    """A named value of a setting or a result: yes, 1,234, 1.5 GB if its name ends in bytes; without credentials."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and name.endswith("bytes"):
        return format_bytes(value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    texts = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return mask_credentials(", ".join(map(str, texts))) or UNKNOWN


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name: `{"train": {"epochs": 5}}` → `{"train.epochs": 5}`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def install_command(extra: str) -> str:
    """The command that installs an extra of surf2vec: in a checkout with its constraints, else from the package index."""
    is_checkout = (Path(__file__).parents[3] / "pyproject.toml").exists()
    return f"pip install -c constraints.txt -e '.[{extra}]'" if is_checkout else f"pip install 'surf2vec[{extra}]'"


def shown(text: str) -> str:
    """Return `text` on one line with control characters escaped: \\x1b, \\n, \\u202e."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown_values(value: Any) -> Any:
    """Return a JSON value with `shown` applied to every text in it."""
    return map_texts(shown, value)


def as_markdown(text: str) -> str:
    """Return Markdown that displays `text` literally: no table, link, emphasis or HTML. MLflow shows `\\<`: entities."""
    return _MARKDOWN.sub(r"\\\1", shown(text)).replace("\\<", "&lt;").replace("\\>", "&gt;")


def describe_rule(row: dict[str, str]) -> str:
    """Return what the gate says of a rule, with its reason."""
    return ": ".join(filter(None, (row["verdict"], row.get("reason"))))
