"""Chooses which field of a log is the user, the page, the time and the others: by the settings, its layout, or usual names."""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import ColumnsConfig, IngestConfig, Layout
from surf2vec.tasks.ingest.layouts import NO_LAYOUT, REQUIRED, find_by_fields, usual_names
from surf2vec.trainer.errors import InputError

ROLES = ("user", "url", "time", "date", "method", "status", "agent", "site", "view")
MIN_VALUES = 10  # fewer may all be different by chance
_REQUEST = ("method", "status", "agent", "view")  # what a layout adds, even if the settings name user, page and time
_DEFAULTS = ColumnsConfig()
_DATA = re.compile(r"://|@|^/|^[\d.:TZ +-]*$|.{65}|\d\.\d+\.\d+\.\d|[0-9a-f]{4}:[0-9a-f:]{2}")
"""A name that may be personal data: it is not shown."""
Values = Callable[[str], Sequence[Any]]
"""Returns the values of a field in the first lines."""


def choose_columns(
    path: Path, header: Sequence[str], config: IngestConfig, values: Values
) -> tuple[dict[str, str | None], Layout]:
    """Return the layout, and the field of each role, or None: its first name with an exact match, else one that ignores case.

    A role that the settings name has that field; others that of the layout; method, status and agent else one by a usual name.
    Raises InputError when a name matches several fields, or for all fields that are missing.
    """
    wanted = {role: getattr(config.columns, role) for role in ROLES}
    is_named = {role: names != getattr(_DEFAULTS, role) for role, names in wanted.items()}
    columns = {role: _find(path, header, names) for role, names in wanted.items()}
    layout = find_by_fields(header, config)
    if config.layout and not layout:
        raise InputError(f"{path} does not have the layout {config.layout}: `surf2vec layouts` shows what each needs")
    is_plain = not config.layout and all(columns[role] or not wanted[role] for role in REQUIRED)
    for role in (_REQUEST if is_plain else ROLES) if layout else ():
        if not is_named[role]:
            columns[role] = _find(path, header, getattr(layout, role))
            wanted[role] = getattr(layout, role) if role in REQUIRED else ()
    for role in ("method", "status", "agent"):
        if not columns[role] and not is_named[role]:
            columns[role] = next((name for name in usual_names(role) if name in header), None)
    missing = [role for role in ROLES if columns[role] is None and wanted[role]]
    if missing:
        raise InputError(_describe_missing(path, header, wanted, missing, values))
    return columns, layout or NO_LAYOUT


def _find(path: Path, header: Sequence[str], names: Sequence[str]) -> str | None:
    for fold in (str, str.casefold):
        for name in names:
            found = [column for column in header if fold(column) == fold(name)]
            if len(found) > 1:
                raise InputError(
                    f"{path} has {len(found)} columns that {name!r} may be ({', '.join(found)}): name the one meant as it is "
                    "written, or rename the others"
                )
            if found:
                return found[0]
    return None


def _describe_missing(
    path: Path, header: Sequence[str], wanted: dict[str, Any], missing: Sequence[str], values: Values
) -> str:
    """Return a message with the missing columns, the existing ones, and settings to paste."""
    looked_for = " and ".join(
        f"{_explain_missing(header, wanted[role])} for the {role.replace('url', 'URL')}" for role in missing
    )
    if any(map(_DATA.search, header)):
        return (
            f"{path} has {looked_for}; its first line looks like data, not like names of columns: give it a header line, or name "
            "the columns by their position, where ingest.columns.user=1 is the first"
        )
    proposals = propose_columns(header, missing, values, taken=[name for names in wanted.values() for name in names])
    settings = ["--set " + shlex.quote(f"ingest.columns.{role}={proposals.get(role, 'NAME')}") for role in missing]
    start = "perhaps" if len(proposals) == len(missing) else "name them with" if len(missing) > 1 else "name it with"
    way_out = f"{start} {' '.join(settings)}"
    if "time" in missing:
        way_out += ", or take the order of the lines for the time with --set 'ingest.columns.time=[]'"
        way_out += "; a date in a column of its own is ingest.columns.date"
    found = ", ".join(repr(name) for name in header[:50]) + (", ..." if len(header) > 50 else "")
    return f"{path} has {looked_for}; it has {found}; {way_out}"


def _explain_missing(header: Sequence[str], names: Sequence[str]) -> str:
    """Return why none of the names is a column: there is none, or it is an object with fields of its own."""
    for name in names:
        if inner := [field for field in header if field.startswith(f"{name}.") and not _DATA.search(field)]:
            return f"an object {name!r} with the fields {', '.join(map(repr, inner[:10]))}{', ...' * (len(inner) > 10)}"
    return f"no column {' or '.join(map(repr, names))}"


def propose_columns(
    header: Sequence[str], roles: Sequence[str], values: Values, taken: Sequence[str] = ()
) -> dict[str, str]:
    """Return role → column, by the usual names and the values; no column twice."""
    plain = {re.sub(r"[\W_]", "", name.casefold()): name for name in reversed(header) if name not in taken}
    proposals: dict[str, str] = {}
    for role in roles:
        names = (plain.get(re.sub(r"[\W_]", "", usual.casefold())) for usual in usual_names(role))
        found = next((name for name in names if name and _may_be(role, values(name))), None)
        if found and found not in proposals.values():
            proposals[role] = found
    return proposals


def _may_be(role: str, values: Sequence[Any]) -> bool:
    """Return whether values may be those of a role: not empty, no objects; users and pages differ, but not all of them."""
    texts = [str(value) for value in values if value not in (None, "")]
    if not texts or any(text.startswith(("{", "[{", "['")) for text in texts):
        return False
    if role == "time":
        return all(re.search(r"\d", text) for text in texts)
    num_distinct = len(set(texts))
    return len(texts) == 1 or (num_distinct > 1 and (len(texts) < MIN_VALUES or num_distinct < len(texts)))
