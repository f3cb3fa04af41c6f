"""The folder of one call under .tmp/ of the root. The call removes it; if it was killed, the next one does."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.root.run import Root
from trainer.system.files import TEMPORARY_SUFFIX

PREFIX = "infer."
_LOCK, _PARTIAL = ".lock", "partial"


@contextmanager
def open_folder(root: Root) -> Iterator[Path]:
    """Yield a folder on the root's disk that goes at the end; what calls that died left goes first.

    A locked file in it says that its call lives. It gets the name that others look for only when it is locked.
    """
    root.temporary.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    made = Path(tempfile.mkdtemp(prefix=f".new-{PREFIX}", dir=root.temporary))
    folder = made.with_name(made.name.removeprefix(".new-"))
    try:
        with open(made / _LOCK, "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made.rename(folder)
            yield folder
    finally:
        for path in (made, folder):
            shutil.rmtree(path, ignore_errors=True)


def note_partial(folder: Path, path: Path) -> None:
    """Note in the folder of a call that it is writing `path`: if it is killed, that file goes with the folder."""
    (folder / _PARTIAL).symlink_to(path.absolute())


def find_leftovers(root: Root) -> Iterator[Path]:
    """Yield the folders of calls that were killed, each locked until the next."""
    for folder in sorted(root.temporary.glob(f"{PREFIX}*")):
        with suppress(FileNotFoundError, BlockingIOError), open(folder / _LOCK, "a", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder


def remove_leftovers(root: Root) -> None:
    """Remove the folders of calls that were killed, and the files that they had half written."""
    for folder in find_leftovers(root):
        partial = folder / _PARTIAL
        if partial.is_symlink() and partial.readlink().name.endswith(TEMPORARY_SUFFIX):
            partial.readlink().unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)  # another call may have removed it a moment ago
