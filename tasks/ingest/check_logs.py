"""Looks at the first bytes of every log of a call, so that what cannot be read is told before anything is started."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.config import IngestConfig
from tasks.ingest.formats import EmptyLogError, recognise
from tasks.ingest.sources import find_there
from trainer.errors import InputError

_AT_ONCE = 8
_SHOWN = 5


def check_shapes(patterns: Sequence[str], config: IngestConfig) -> None:
    """Raise one InputError for all files on this machine that the globs name and that are not of a shape that can be read, also
    when a glob names no file. Logs elsewhere are looked at when they are fetched.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        faults = [fault for fault in pool.map(lambda path: _find_fault(path, config), find_there(patterns)) if fault]
    if faults:
        more = [f"and {len(faults) - _SHOWN:,} more files"] if len(faults) > _SHOWN else []
        raise InputError("\n".join([*faults[:_SHOWN], *more]))


def _find_fault(path: str, config: IngestConfig) -> str | None:
    """Why a log cannot be read. One without lines is for ingest to judge: it may be left out until it has some."""
    try:
        recognise(Path(path), config)
    except EmptyLogError:
        return None
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    return None
