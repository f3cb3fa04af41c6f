"""What Qdrant's REST interface has for a push, in front of the client's local mode: `serve_qdrant`.

It is not Qdrant. Requests are read by the client's own models, so that it shows what a push sends, and that URL and key arrive.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import Body, Depends, FastAPI, Header, HTTPException, Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models

KEY = "the key of the tests"
Given = Annotated[dict[str, Any], Body()]


def make_app() -> FastAPI:
    """An empty store. Its requests run one after another, in the event loop."""
    store, app = QdrantClient(":memory:"), FastAPI(dependencies=[Depends(check_key)])

    @app.exception_handler(ValueError)
    async def refuse(_: Request, error: ValueError) -> JSONResponse:
        return JSONResponse({"status": {"error": str(error)}, "time": 0.0}, 404)

    add_collections(app, store)
    add_points(app, store)
    return app


def answer(result: Any) -> dict[str, Any]:
    return {"result": jsonable_encoder(result), "status": "ok", "time": 0.0}


def add_collections(app: FastAPI, store: QdrantClient) -> None:
    """Collections and their aliases."""

    @app.get("/collections")
    async def list_collections() -> Any:
        return answer(store.get_collections())

    @app.get("/aliases")
    async def list_aliases() -> Any:
        return answer(store.get_aliases())

    @app.post("/collections/aliases")
    async def change_aliases(given: Given) -> Any:
        return answer(store.update_collection_aliases(models.ChangeAliasesOperation(**given).actions))

    @app.put("/collections/{name}")
    async def create(name: str, given: Given) -> Any:
        return answer(store.create_collection(name, models.CreateCollection(**given).vectors or {}))

    @app.delete("/collections/{name}")
    async def delete(name: str) -> Any:
        return answer(store.delete_collection(name))


def add_points(app: FastAPI, store: QdrantClient) -> None:
    """The points of a collection."""

    @app.put("/collections/{name}/points")
    async def upsert(name: str, given: Given) -> Any:
        points = TypeAdapter[Any](models.PointInsertOperations).validate_python(given)
        return answer(store.upsert(name, points.batch if isinstance(points, models.PointsBatch) else points.points))

    @app.post("/collections/{name}/points")
    async def retrieve(name: str, given: Given) -> Any:
        asked = models.PointRequest(**given)
        return answer(store.retrieve(name, asked.ids, asked.with_payload or False, asked.with_vector or False))

    @app.post("/collections/{name}/points/delete")
    async def remove(name: str, given: Given) -> Any:
        return answer(store.delete(name, models.PointIdsList(**given).points))

    @app.post("/collections/{name}/points/count")
    async def count(name: str, given: Given) -> Any:
        return answer(store.count(name, exact=bool(models.CountRequest(**given).exact)))

    @app.post("/collections/{name}/points/scroll")
    async def scroll(name: str, given: Given) -> Any:
        asked = models.ScrollRequest(**given)
        points, offset = store.scroll(
            name, limit=asked.limit or 10, offset=asked.offset, with_payload=asked.with_payload or False
        )
        return answer({"points": points, "next_page_offset": offset})


def check_key(api_key: Annotated[str, Header()] = "") -> None:
    if api_key != KEY:
        raise HTTPException(401, "Must provide an API key or an Authorization bearer token")


@contextmanager
def serve_qdrant() -> Iterator[str]:
    """The `host:port` of an empty store, which wants the key KEY."""
    server = uvicorn.Server(uvicorn.Config(make_app(), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.02)
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
