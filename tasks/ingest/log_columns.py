"""Which column of a log is what: by the names that are wanted, and a guess for a person where there is none of them."""

import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from tasks.config import ColumnsConfig
from trainer.errors import InputError

ROLES = ("user", "url", "time", "method", "status", "agent")
REQUIRED = ROLES[:3]
_WORDS = {"user": "the user", "url": "the URL", "time": "the time"}
# Names that logs have, letters and digits alone, the likeliest first.
_KNOWN = {
    "user": (
        "userid", "user", "uid", "visitorid", "visitor", "customerid", "customer", "clientid", "memberid", "accountid",
        "cookieid", "cookie", "host", "clientip", "ipaddress", "ip", "remoteaddr", "remotehost", "cip", "client",
        "sessionid", "session",
    ),
    "url": (
        "url", "pageurl", "uri", "requesturi", "page", "path", "pagepath", "link", "location", "href", "csuristem", "pageid",
        "itemid", "item", "productid", "article", "document", "request",
    ),
    "time": (
        "ts", "timestamp", "time", "datetime", "eventtime", "createdat", "visitedat", "date", "when", "epoch", "unixtime",
        "order",
    ),
}  # fmt: skip


def find_columns(path: Path, header: Sequence[str], wanted: ColumnsConfig) -> dict[str, str | None]:
    """For each role its column, None where there is none: the first of its names that is there as written, else the first that
    is there but for upper and lower case.

    Raises InputError when it cannot be told which column is meant, and one for all that are needed and missing.
    """
    columns = {role: _find(path, header, getattr(wanted, role)) for role in ROLES}
    missing = [role for role in REQUIRED if columns[role] is None and getattr(wanted, role)]
    if missing:
        raise InputError(_describe_missing(path, header, wanted, missing))
    return columns


def _find(path: Path, header: Sequence[str], names: Sequence[str]) -> str | None:
    for fold in (str, str.casefold):
        for name in names:
            found = [column for column in header if fold(column) == fold(name)]
            if len(found) > 1 and fold is str:
                raise InputError(f"{path} has {len(found)} columns named {name!r}: rename all but the one meant")
            if len(found) > 1:
                listed = " and ".join(repr(column) for column in found)
                raise InputError(
                    f"{path} has {listed}, and {name!r} may be either: name the one meant as it is written"
                )
            if found:
                return found[0]
    return None


def _describe_missing(path: Path, header: Sequence[str], wanted: ColumnsConfig, missing: Sequence[str]) -> str:
    """The columns that are missing, those that are there, and settings that can be pasted."""
    looked_for = " and ".join(
        f"no column {' or '.join(repr(name) for name in getattr(wanted, role))} for {_WORDS[role]}" for role in missing
    )
    if any(re.search(r"://|@|^/|^[\d.:TZ +-]*$|.{65}", name) for name in header):  # may be of a person: not shown
        return (
            f"{path} has {looked_for}; its first line looks like data, not like names of columns: give it a header line"
        )
    guesses = guess_columns(header, missing, taken=[name for role in ROLES for name in getattr(wanted, role)])
    settings = ["--set " + shlex.quote(f"ingest.columns.{role}={guesses.get(role, 'NAME')}") for role in missing]
    way_out = (
        f"{'perhaps' if guesses else 'name them with' if len(missing) > 1 else 'name it with'} {' '.join(settings)}"
    )
    if "time" in missing:
        way_out += ", or take the order of the lines for the time with --set 'ingest.columns.time=[]'"
    found = ", ".join(repr(name) for name in header[:50]) + (", ..." if len(header) > 50 else "")
    return f"{path} has {looked_for}; it has {found}; {way_out}"


def guess_columns(header: Sequence[str], roles: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """Role → the column that is likely to be meant, by names that logs have, or the nearest to them; no column twice."""
    plain = {name: re.sub(r"[^a-z0-9]", "", name.casefold()) for name in reversed(header)}
    free = {word: name for name, word in plain.items() if name not in taken and word}
    guesses: dict[str, str] = {}
    for is_exact in (True, False):
        for role in roles:
            names: Sequence[str] = _KNOWN[role]
            if not is_exact:
                names = [near for name in names for near in difflib.get_close_matches(name, free, n=1, cutoff=0.75)]
            found = next((name for name in names if name in free), None)
            if found and role not in guesses:
                guesses[role] = free.pop(found)
    return guesses
