"""What a call does to names, and what it waits for: os.fsync, link, rename, replace, unlink, rmdir, in order, with paths."""

import os
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """Records, as ("fsync", path) and so on; `note` adds an event of another kind, such as that a version is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        fsync = os.fsync

        def watched_fsync(descriptor: int) -> None:
            fsync(descriptor)
            self.note("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))

        monkeypatch.setattr(os, "fsync", watched_fsync)
        for name, argument in {"link": 1, "rename": 0, "replace": 1, "unlink": 0, "rmdir": 0, "remove": 0}.items():
            monkeypatch.setattr(os, name, self._watch(name, getattr(os, name), argument))

    def _watch(self, name: str, call: Any, argument: int) -> Any:
        def watched(*arguments: Any, dir_fd: int | None = None, **named: Any) -> None:
            path = os.path.realpath(os.path.dirname(os.fspath(arguments[argument]))) if dir_fd is None else None
            folder = path if path is not None else os.readlink(f"/proc/self/fd/{dir_fd}")
            call(*arguments, **named | ({} if dir_fd is None else {"dir_fd": dir_fd}))
            self.note(name, f"{folder}/{os.path.basename(os.fspath(arguments[argument]))}")

        return watched

    def note(self, kind: str, what: Any) -> None:
        self.events.append((kind, str(what)))

    def first(self, kind: str, ending: str = "") -> int:
        """The place of the first event of a kind, on a path that ends so."""
        return next(i for i, (found, path) in enumerate(self.events) if found == kind and path.endswith(ending))

    def unsynced(self, kinds: set[str], before: int, under: Path) -> list[str]:
        """The names that changed below a folder before an event, whose folder was not synced between the change and it."""
        late = []
        for i, (kind, path) in enumerate(self.events[:before]):
            folder = os.path.dirname(path)
            if kind in kinds and Path(path).is_relative_to(under) and ("fsync", folder) not in self.events[i:before]:
                late.append(path)
        return late
