"""Pushes the release r2 and ends this process as `kill -9` does at a point: `python -m tests.faults.push_kill URL FOLDER POINT`.

POINT: the beginning of a line that the push logs, `progress` for its first progress, or `swap` for the moment before the switch.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from surf2vec.tasks.stores.places import Side, Store, open_store
from surf2vec.tasks.stores.push import push
from tests.roots.pushes import SECOND, write_release


def kill(*_: Any) -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    url, folder, point = sys.argv[1:]

    def on_event(name: str, values: dict[str, Any]) -> None:
        if point == name or str(values.get("message")).startswith(point):
            kill()

    with open_store(url) as store:
        if point == "swap":
            replace_swap(store)
        push(store, write_release(Path(folder), "r2", SECOND, number=2), False, on_event)


def replace_swap(store: Store) -> None:
    """Kill in place of the switch."""

    def swap(side: Side) -> None:
        kill()

    store.swap = swap  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
