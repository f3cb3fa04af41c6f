"""A real S3 server on the loopback, for as long as a test needs it, and how the environment says where it is."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

KEY_ID, SECRET = "key-id-of-a-test", "secret-of-a-test/+"
BUCKET = "logs"


@dataclass
class Bucket:
    """A bucket on the server; `requests`: what was asked of the server so far, as "GET /logs/a.csv bytes=0-9"."""

    url: str
    requests: list[str] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)  # path → how many GETs of it fail from now on

    def put(self, name: str, data: bytes | str) -> str:
        """Write an object; returns its URL."""
        import s3fs

        store = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
        url = f"s3://{BUCKET}/{name}"
        store.pipe_file(url, data.encode() if isinstance(data, str) else data)
        return url

    def remove(self, name: str) -> None:
        import s3fs

        s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True).rm_file(f"s3://{BUCKET}/{name}")

    @property
    def reads(self) -> list[str]:
        """The requests for objects."""
        return [line for line in self.requests if re.match(rf"GET /{BUCKET}/.", line)]


@contextmanager
def serve_bucket() -> Iterator[Bucket]:
    """Start a server with an empty bucket, and have the environment lead to it."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    bucket = Bucket("")
    app = DomainDispatcherApplication(create_backend_app)

    def watched(environ, start_response):
        place = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        bucket.requests.append(f"{place} {environ.get('HTTP_RANGE', '')}".rstrip())
        if environ["REQUEST_METHOD"] == "GET" and bucket.broken.get(environ["PATH_INFO"], 0) > 0:
            bucket.broken[environ["PATH_INFO"]] -= 1
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        return app(environ, start_response)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, watched, threaded=True)
    bucket.url = f"http://127.0.0.1:{server.port}"
    environment = (
        {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
        | {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": bucket.url}
        | {"AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}
    )
    import threading

    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with patch.dict(os.environ, environment):
            import s3fs

            s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True).mkdir(BUCKET)
            yield bucket
    finally:
        server.shutdown()
        thread.join()
