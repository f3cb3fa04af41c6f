"""Looks at all local logs of a call before anything is started."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.formats import EmptyLogError, recognise
from surf2vec.tasks.ingest.sources import expand, is_query, is_remote
from surf2vec.tasks.ingest.sql_logs import check_query
from surf2vec.trainer.errors import InputError

_FILES_AT_ONCE = 8
_FAULTS_SHOWN = 5


def check_shapes(patterns: Sequence[str], config: IngestConfig) -> None:
    """Raise one InputError for all unreadable local files of the globs, and for globs without files. Remote logs are checked
    when they are fetched.
    """

    def find_fault(path: str) -> str | None:
        try:
            check_query(path, config) if is_query(path) else recognise(Path(path), config)
        except EmptyLogError:  # ingest decides whether to leave it out until it has lines
            return None
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"cannot read {path}: {error.strerror}"
        return None

    paths = dict.fromkeys(path for pattern in patterns if not is_remote(pattern) for path in expand(pattern))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        faults = [fault for fault in pool.map(find_fault, paths) if fault]
    if faults:
        more = [f"and {len(faults) - _FAULTS_SHOWN:,} more files"] if len(faults) > _FAULTS_SHOWN else []
        raise InputError("\n".join([*faults[:_FAULTS_SHOWN], *more]))
