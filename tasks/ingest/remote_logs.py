"""Logs that are not on this machine (`s3://bucket/day=*/part-*.csv.gz`), through fsspec: listed, and fetched while needed.

An object is fetched block by block into the call's folder; a block that does not arrive is fetched again, with longer and
longer waits. Its name is its URL. An object with the size, time of change and ETag that it had when it was read is not fetched
again. Up to KEPT_BYTES stay on the disk until the ingest ends; others go at once, and are fetched again to read their lines.

Credentials come from the environment, as the store's own tools take them; one in a URL is refused.
"""

import glob
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from tasks.config import IngestConfig
from tasks.ingest.formats import LogFile, recognise
from tasks.ingest.sources import SourceFile, Stamp, is_remote, read_stamp
from tasks.root.credentials import mask_credentials
from trainer.errors import InputError, ResourceError, SurfError
from trainer.system.files import digest_file

BLOCK_BYTES = 8 << 20
KEPT_BYTES = 2 << 30
WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_Result = TypeVar("_Result")


@dataclass
class RemoteLogs:
    """The remote logs of one ingest, recognised by `config` when they are in `folder` for the first time."""

    folder: Path
    config: IngestConfig
    seen: dict[str, LogFile | SurfError] = field(default_factory=dict)
    stores: dict[str, Any] = field(default_factory=dict)
    kept_bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def list(self, pattern: str) -> dict[str, Stamp]:
        """The objects that a pattern, or a plain URL, names, with their stamps. Raises InputError when there are none."""
        store = self._store(pattern)
        found = _ask(pattern, lambda: store.glob(pattern, detail=True), {}) if glob.has_magic(pattern) else {}
        if not found and (info := _ask(pattern, lambda: store.info(pattern), None)):
            found = {info["name"]: info}
        files = {store.unstrip_protocol(name): _stamp(info) for name, info in found.items() if info["type"] == "file"}
        if not files:
            raise InputError(
                f"no object matches {pattern!r}: check bucket and path, and quote a glob so that the shell leaves it alone"
            )
        return files

    def digest(self, url: str, stamp: Stamp) -> str:
        """The sha256 of an object, which is looked at on the way, and stays on the disk if there is room for it."""
        with self._lock:
            is_kept = self.kept_bytes + stamp[0] <= KEPT_BYTES
            self.kept_bytes += stamp[0] if is_kept else 0
        path = self._fetch(url, stamp)
        with _named(url, path):
            digest = digest_file(path)
            try:
                self.seen[url] = recognise(path, self.config)
            except SurfError as error:
                self.seen[url] = error
        if not is_kept:
            path.unlink()
        return digest

    def log_of(self, source: SourceFile) -> LogFile:
        """What a source's log is, remote or not. Raises InputError when it is nothing that can be read."""
        if not is_remote(source.name):
            return recognise(Path(source.name), self.config)
        if source.name not in self.seen:  # known by its stamp, but to be read again: its files are damaged
            self.digest(source.name, source.stamp)
        seen = self.seen[source.name]
        if isinstance(seen, SurfError):
            with _named(source.name, self._path(source.name)):
                raise seen
        return seen

    @contextmanager
    def present(self, source: SourceFile) -> Iterator[None]:
        """Have the bytes of a source on the disk while they are read. Raises InputError when they changed meanwhile."""
        if not is_remote(source.name):
            yield
            if read_stamp(source.name) != source.stamp:
                raise _changed(source.name)
            return
        path = self._path(source.name)
        is_kept = path.exists()
        with _named(source.name, path):
            if not is_kept:
                self._fetch(source.name, source.stamp)
                if digest_file(path) != source.sha256:
                    raise _changed(source.name)
            yield
        if not is_kept:
            path.unlink()

    def _path(self, url: str) -> Path:
        """Where the bytes of an object are while they are on the disk; it ends as the object's name does."""
        return self.folder / hashlib.sha256(url.encode()).hexdigest()[:16] / os.path.basename(url)

    def _fetch(self, url: str, stamp: Stamp) -> Path:
        """Bring an object to its path, block by block."""
        store, path, num_bytes = self._store(url), self._path(url), stamp[0]
        path.parent.mkdir(parents=True, exist_ok=True)

        def read_block(start: int) -> bytes:
            end = min(start + BLOCK_BYTES, num_bytes)
            block: bytes = store.cat_file(url, start=start, end=end)
            if len(block) != end - start:
                raise OSError(f"{len(block):,} of {end - start:,} bytes arrived")
            return block

        with open(path, "wb") as file:
            for start in range(0, num_bytes, BLOCK_BYTES):
                file.write(_ask(url, partial(read_block, start)))
        if _stamp(_ask(url, lambda: store.info(url))) != stamp:
            raise _changed(url)
        return path

    def _store(self, url: str) -> Any:
        """fsspec's view of where a URL leads. Raises InputError for credentials in it and for a kind that is not known."""
        refuse_credentials(url)
        scheme = url.partition("://")[0]
        with self._lock:
            if scheme not in self.stores:
                import fsspec

                try:
                    self.stores[scheme] = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
                except (ValueError, ImportError) as error:
                    raise InputError(f"{url!r} cannot be read: {_describe(error)}; s3:// can") from None
            return self.stores[scheme]


def refuse_credentials(*urls: str) -> None:
    """Raise InputError for a URL with credentials in it: it would stand in sources.json, in logs and in stories."""
    for url in urls:
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise InputError(
                f"{mask_credentials(url)!r} has credentials in it: take them out, and give them in the environment "
                "(for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
            )


def _ask(url: str, call: Callable[[], _Result], absent: Any = ...) -> _Result:
    """What `call` returns, tried again with longer and longer waits; `absent`, if given, where there is no such thing.

    Raises ResourceError, or InputError when the object is not there.
    """
    for wait_seconds in (*WAITS_SECONDS, None):
        try:
            return call()
        except FileNotFoundError:
            if absent is not ...:
                return absent
            raise InputError(f"{url} is not there any more: deliver it again, or leave it out of --logs") from None
        except Exception as error:  # each kind of store has its own
            way_out = f"tried {len(WAITS_SECONDS) + 1} times; see that it is up (for S3 also AWS_ENDPOINT_URL)"
            is_refused = isinstance(error, PermissionError) or type(error).__name__ == "NoCredentialsError"
            if is_refused:
                way_out = "give credentials that may read it, for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            if is_refused or wait_seconds is None:
                raise ResourceError(
                    f"{url} cannot be read: {_describe(error)}; {way_out}, then run the same command again; what was there "
                    "before is untouched"
                ) from None
            time.sleep(wait_seconds)
    raise AssertionError("the last try returns or raises")


def _stamp(info: dict[str, Any]) -> Stamp:
    """Bytes, time of change in nanoseconds (whole seconds), and a number of the ETag. Without either, never the same."""
    changed = next((info[name] for name in ("LastModified", "mtime", "updated", "created") if info.get(name)), None)
    tag = next((info[name] for name in ("ETag", "etag", "md5Hash") if info.get(name)), None)
    if changed is None and tag is None:
        return info["size"], 0, time.time_ns()
    seconds = int(getattr(changed, "timestamp", lambda: changed or 0)())
    return info["size"], seconds * 10**9, int(hashlib.sha256(str(tag).encode()).hexdigest()[:12], 16)


@contextmanager
def _named(url: str, path: Path) -> Iterator[None]:
    """Have errors name the object, not the file that its bytes are in for a while."""
    try:
        yield
    except SurfError as error:
        if str(path) not in str(error):
            raise
        raise type(error)(str(error).replace(str(path), url)) from None


def _changed(url: str) -> InputError:
    return InputError(f"{url} changed while it was read: deliver it again when it is complete")


def _describe(error: Exception) -> str:
    """An error in a line, without anything secret."""
    text = mask_credentials(str(error).partition("\n")[0])[:300]
    for name in _SECRETS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return text or type(error).__name__
