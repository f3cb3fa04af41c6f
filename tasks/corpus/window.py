"""The events of a corpus: the sources, files and days of a window, and the window id that follows from them.

This module reads only `sources.json`: the window and its id are known before any event is read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from glob import escape
from typing import Any

import duckdb

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.ingest.sources import EventsFile, events_files, read_catalog
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.tombstones import FORGOTTEN
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.system.files import digest_json

FORMAT_VERSION = 4
_CLEANING = {"max_day_events", "min_item_events", "min_item_users", "min_user_events", "max_user_events"}
_MUST_MATCH = ("format_version", "partitions", "rules", "user_key_fingerprint", "cleaning")  # in corpus and base


@dataclass(frozen=True)
class Base:
    """The corpus to continue, by its window id. Its users are dropped `retain_days` after their newest event.

    is_full: for a full night, which takes over only users without events in the window.
    """

    window_id: str
    retain_days: int
    is_full: bool = False


@contextmanager
def explain_unreadable(root: Root) -> Iterator[None]:
    """Raise DamageError for an events file that DuckDB cannot read."""
    try:
        yield
    except duckdb.Error as error:
        # DuckDB names the file, or raises its base class when the file's footer is unreadable
        is_named = isinstance(error, duckdb.InvalidInputException) and str(root.events) in str(error)
        if not is_named and type(error) is not duckdb.Error:
            raise
        raise DamageError(
            f"an events file cannot be read ({str(error).splitlines()[0]}): run `surf2vec doctor`, then give the logs "
            "that it names again, which repairs them"
        ) from error


@dataclass(frozen=True)
class Window:
    """The sources and files whose events a run trains on. `since` and `until`: first and last day with events.

    forgotten: sha256 of a source → number of its events removed with forgotten users, if any.
    read_by: sha256 of a source → the settings that read its lines, if not the defaults.
    """

    partitions: int
    source_digests: tuple[str, ...]
    rules: dict[str, Any] | None
    user_key_fingerprint: str | None
    files: tuple[EventsFile, ...]
    forgotten: dict[str, int] = field(default_factory=dict)
    read_by: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def days(self) -> list[date]:
        return sorted({file.day for file in self.files if file.day})

    @property
    def since(self) -> str | None:
        return self.days[0].isoformat() if self.days else None

    @property
    def until(self) -> str | None:
        return self.days[-1].isoformat() if self.days else None

    @property
    def num_events(self) -> int:
        return sum(file.about["rows"] for file in self.files)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the SQL steps. File names are escaped, as DuckDB reads them as patterns."""
        return {
            "partitions": self.partitions,
            "files": [escape(str(file.path)) for file in self.files],
            "undated_files": [str(file.path) for file in self.files if file.day is None],
        }


def select_window(root: Root, since: date | None, until: date | None, window_days: int | None) -> Window:
    """Return the window of UTC days from `since` to `until`, both included. It always includes undated events.

    Without `since` it has the last `window_days` days, or all days. Raises InputError when it is empty.
    """
    catalog = read_catalog(root)
    if catalog.partitions is None:
        raise InputError(f"nothing was ingested into {root.path}: give logs with --logs")
    found = list(events_files(root, catalog))
    days = sorted({file.day for file in found if file.day})
    last = until or (days[-1] if days else None)
    if since is None and window_days is not None and last is not None:
        since = last - timedelta(days=window_days - 1)
    kept = [file for file in found if not file.day or (since or file.day) <= file.day <= (until or file.day)]
    names = {str(file.path.relative_to(root.path)) for file in kept}
    entries = {key: entry for key, entry in sorted(catalog.entries.items()) if not names.isdisjoint(entry["files"])}
    # By day, undated files first: a user's events are then in order, except within a day.
    files = sorted(kept, key=lambda file: (file.day or date.min, file.path.name))
    window = Window(
        partitions=catalog.partitions,
        source_digests=tuple(entries),
        rules=catalog.rules,
        user_key_fingerprint=catalog.user_key_fingerprint,
        files=tuple(files),
        forgotten={d: e["left_out"][FORGOTTEN] for d, e in entries.items() if FORGOTTEN in e["left_out"]},
        read_by={digest: entry["read_by"] for digest, entry in entries.items() if entry["read_by"]},
    )
    if not window.num_events:
        known = f"it has events from {days[0]} to {days[-1]}" if days else "it has no events at all"
        raise InputError(
            f"no events in {root.path} from {since or 'the first day'} to {until or 'the last day'}: {known}; "
            "give other days with --since and --until, or more logs with --logs"
        )
    return window


@dataclass(frozen=True)
class CorpusRequest:
    """How to make a corpus: cleaned by `ingest`, of the days as in `select_window`, continuing `base` if given."""

    ingest: IngestConfig
    evaluate: EvaluateConfig
    since: date | None = None
    until: date | None = None
    window_days: int | None = None
    base: Base | None = None

    def select_window(self, root: Root) -> Window:
        """Return the window of the days. Raises InputError when it is empty."""
        return select_window(root, self.since, self.until, self.window_days)

    def inputs(self, window: Window) -> dict[str, Any]:
        """Return everything that determines the bytes of a corpus of this window."""
        base = self.base and {"window_id": self.base.window_id, "retain_days": self.base.retain_days}
        is_full = self.base is not None and self.base.is_full
        inputs = {
            "format_version": FORMAT_VERSION,
            "partitions": window.partitions,
            "sources": window.source_digests,
            "rules": window.rules,
            "user_key_fingerprint": window.user_key_fingerprint,
            "days": [window.since, window.until],
            "cleaning": self.ingest.model_dump(mode="json", include=_CLEANING),
            "max_users": self.evaluate.max_users,
            "base": None if is_full else base,
        }
        others = {"retained": base if is_full else None, "read_by": window.read_by, "forgotten": window.forgotten}
        return inputs | {name: value for name, value in others.items() if value}

    def name(self, root: Root) -> str:
        """Return the window id, 16 hex digits, a digest of the inputs. Raises InputError when the window is empty."""
        return name_corpus(self.inputs(self.select_window(root)))


def ends_before(until: str | None, other: str | None) -> bool:
    """Return whether a window ends before another, by their last days: a late run of an older window must not serve."""
    return until is not None and other is not None and until < other


def name_corpus(inputs: dict[str, Any]) -> str:
    """Return the window id, 16 hex digits: corpora with the same id have the same bytes."""
    return digest_json(inputs)[:16]


def list_differences(made_from: dict[str, Any], inputs: dict[str, Any]) -> list[str]:
    """Return the inputs that must match those of the corpus to continue, but differ."""
    return [name for name in _MUST_MATCH if made_from.get(name) != inputs[name]]
