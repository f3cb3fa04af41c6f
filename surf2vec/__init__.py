"""User vectors from web browsing logs, in Python: the functions of `surf2vec.api`, loaded at first use.

    import surf2vec

    surf2vec.run("logs/*.csv.gz", "my-root")
    release = surf2vec.open_release("my-root")
    release.user_vectors().collect()  # user_id, vector
    release.rank("u17", k=5)  # url, score

The folders `flows`, `tasks`, `trainer`, `sql` and `infra` of the repository are linked here, so that they are installed and
imported as `surf2vec.flows` and so on.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surf2vec.api import Release, SurfError, check_pair, open_release, pull, run

__version__ = "0.2.0"
__all__ = ["Release", "SurfError", "check_pair", "open_release", "pull", "run"]


def __getattr__(name: str) -> Any:
    """Import the API at first use: `surf2vec.trainer` also runs where Polars, DuckDB and MLflow are not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from surf2vec import api

    return getattr(api, name)
