"""Lists and fetches remote logs (`s3://bucket/day=*/part-*.csv.gz`) through fsspec.

An object is downloaded into the call's folder, where it stays until its lines are read; the store's own client retries what
fails. The name of a log is its URL. An object whose size, time of change and ETag are the same as when it was read is not
fetched again.

Credentials come from the environment variables of the store's own tools; a URL with credentials is refused.
"""

import glob
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.formats import LogFile, recognise
from surf2vec.tasks.ingest.sources import SourceFile, Stamp, is_query, is_remote, read_stamp
from surf2vec.tasks.ingest.sql_logs import Days, choose_days, extract_source, run_query
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.memory import spare_bytes
from surf2vec.trainer.errors import InputError, ResourceError, SurfError
from surf2vec.trainer.system.files import digest_file

# One stream an object: several at once would hold 50 MB of it each.
_OPTIONS: dict[str, dict[str, Any]] = {"s3": {"max_concurrency": 1}, "s3a": {"max_concurrency": 1}}
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass
class RemoteLogs:
    """The remote logs of one ingest, and its queries with the days, memory and threads that they may use."""

    folder: Path
    config: IngestConfig
    days: Days | None = None
    memory_bytes: int = 0
    threads: int = 0
    stores: dict[str, Any] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def list(self, pattern: str) -> dict[str, Stamp]:
        """Return the objects that match a pattern or plain URL, with their stamps. Raises InputError when there are none."""
        store, found = self._store(pattern), dict[str, dict[str, Any]]()
        with _explain(pattern), suppress(FileNotFoundError):
            found = store.glob(pattern, detail=True) if glob.has_magic(pattern) else {}
            if not found:
                info = store.info(pattern)
                found = {info["name"]: info}
        files = {store.unstrip_protocol(name): _stamp(info) for name, info in found.items() if info["type"] == "file"}
        if not files:
            raise InputError(f"no object matches {pattern!r}: check bucket and path, and quote a glob in the shell")
        return files

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Return the names of the files or objects that match a pattern."""
        if not is_remote(pattern):
            return tuple(glob.glob(pattern))
        store = self._store(pattern)
        with _explain(pattern):
            return tuple(store.unstrip_protocol(name) for name in store.glob(pattern))

    def digest(self, url: str, stamp: Stamp) -> str:
        """Fetch an object and return its sha256."""
        return digest_file(self._fetch(url, stamp))

    def run(self, query: str, known: Mapping[str, Any]) -> Iterable[SourceFile]:
        days = self.days or choose_days(None, None, None)
        memory_bytes = spare_bytes(self.memory_bytes) // 2
        return run_query(query, self.config, self.folder, known, days, memory_bytes, self.threads)

    def log_of(self, source: SourceFile) -> LogFile:
        """Return the recognised log of a source, remote or local. Raises InputError when it cannot be read."""
        path, config = self._path(source.name), self.config
        if is_query(source.name):
            config = extract_source(source.name, self.folder, path, config)
        elif not is_remote(source.name):
            return recognise(Path(source.name), config)
        if not path.exists():  # known by its stamp, but its events files are damaged
            self._fetch(source.name, source.stamp)
            if digest_file(path) != source.sha256:
                raise _changed(source.name)
        with _naming(source.name, path):
            return recognise(path, config)

    @contextmanager
    def present(self, source: SourceFile) -> Iterator[None]:
        """Keep a source on the disk while it is read. Raises InputError when it changed meanwhile."""
        if not is_remote(source.name) and not is_query(source.name):
            yield
            if read_stamp(source.name) != source.stamp:
                raise _changed(source.name)
            return
        path = self._path(source.name)
        with _naming(source.name, path):
            yield
        path.unlink(missing_ok=True)

    def _path(self, url: str) -> Path:
        """Return the local path of an object; it has the same file name."""
        return self.folder / hashlib.sha256(url.encode()).hexdigest()[:16] / os.path.basename(url)

    def _fetch(self, url: str, stamp: Stamp) -> Path:
        """Download an object to its local path. Raises InputError when it changed since it was listed, or is gone."""
        store, path = self._store(url), self._path(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _explain(url):
            store.get_file(url, str(path))
            info = store.info(url)
        if _stamp(info) != stamp or path.stat().st_size != stamp[0]:
            raise _changed(url)
        return path

    def _store(self, url: str) -> Any:
        """Return the fsspec file system of a URL. Raises InputError for credentials in it and for an unknown scheme."""
        refuse_credentials(url)
        scheme = url.partition("://")[0]
        with self._lock:
            if scheme not in self.stores:
                import fsspec

                try:
                    self.stores[scheme] = fsspec.filesystem(
                        scheme, use_listings_cache=False, skip_instance_cache=True, **_OPTIONS.get(scheme, {})
                    )
                except (ValueError, ImportError) as error:
                    raise InputError(f"{url!r} cannot be read: {_describe(error)}; s3:// can") from None
            return self.stores[scheme]


def refuse_credentials(*urls: str) -> None:
    """Raise InputError for a URL with credentials: they would appear in sources.json, logs and records."""
    for url in urls:
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise InputError(
                f"{mask_credentials(url)!r} has credentials in it: take them out, and give them in the environment "
                "(for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
            )


@contextmanager
def _explain(url: str) -> Iterator[None]:
    """Raise ResourceError when the store cannot be reached or refuses, InputError when the object is missing."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{url} is not there any more: deliver it again, or leave it out of --logs") from None
    except Exception as error:  # each store has its own exceptions
        way_out = "check that the store is up (for S3 also AWS_ENDPOINT_URL)"
        if isinstance(error, PermissionError) or type(error).__name__ == "NoCredentialsError":
            way_out = "give credentials that may read it, for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise ResourceError(
            f"{url} cannot be read: {_describe(error)}; {way_out}, then run the same command again; what was there before is "
            "untouched"
        ) from None


def _stamp(info: dict[str, Any]) -> Stamp:
    """Return (bytes, time of change in ns, a hash of the ETag); unique if the store has neither time nor ETag."""
    changed = next((info[name] for name in ("LastModified", "mtime", "updated", "created") if info.get(name)), None)
    tag = next((info[name] for name in ("ETag", "etag", "md5Hash") if info.get(name)), None)
    if changed is None and tag is None:
        return info["size"], 0, time.time_ns()
    seconds = int(getattr(changed, "timestamp", lambda: changed or 0)())
    return info["size"], seconds * 10**9, int(hashlib.sha256(str(tag).encode()).hexdigest()[:12], 16)


@contextmanager
def _naming(url: str, path: Path) -> Iterator[None]:
    """Replace the local path by the URL in the messages of errors."""
    try:
        yield
    except SurfError as error:
        if str(path) not in str(error):
            raise
        raise type(error)(str(error).replace(str(path), url)) from None


def _changed(url: str) -> InputError:
    return InputError(f"{url} changed while it was read: deliver it again when it is complete")


def _describe(error: Exception) -> str:
    """Return an error's message as one line, without secrets."""
    text = mask_credentials(str(error).partition("\n")[0])[:300]
    for name in _SECRETS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return text or type(error).__name__
