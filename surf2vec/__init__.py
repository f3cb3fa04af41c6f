"""User vectors from web browsing logs, in Python: the commands as functions, and `Release`, loaded at first use.

    import surf2vec

    surf2vec.run("logs/*.csv.gz", "my-root")
    release = surf2vec.open_release("my-root")
    release.user_vectors().collect()  # user_id, vector
    release.rank("u17", k=5)  # url, score

The folders `flows`, `tasks`, `trainer`, `sql` and `infra` of the repository are linked here, so that they are installed and
imported as `surf2vec.flows` and so on.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surf2vec.api import Release, SurfError, check_pair, make_item, open_release
    from surf2vec.commands import as_of, backfill, explain, forget, infer, nights, plan, run, settings, similar, tune
    from surf2vec.operations import (
        doctor,
        gc,
        layouts,
        promote,
        pull,
        push,
        rejects,
        repartition,
        restore,
        rollback,
        sample_logs,
        word2vec,
    )
    from surf2vec.tasks.night.config import PipelineConfig, load_config

__version__ = "0.2.0"
__all__ = [
    "PipelineConfig", "Release", "SurfError", "as_of", "backfill", "check_pair", "doctor", "explain", "forget", "gc", "infer",
    "layouts", "load_config", "make_item", "nights", "open_release", "plan", "promote", "pull", "push", "rejects",
    "repartition", "restore", "rollback", "run", "sample_logs", "settings", "similar", "tune", "word2vec",
]  # fmt: skip
_MODULES = ("commands", "operations", "api", "tasks.night.config")


def __getattr__(name: str) -> Any:
    """Import the API at first use: `surf2vec.trainer` also runs where Polars, DuckDB and MLflow are not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in _MODULES:
        found = import_module(f"{__name__}.{module}")
        if hasattr(found, name):
            return getattr(found, name)
    raise AssertionError(f"{name} is in __all__, and in no module")
