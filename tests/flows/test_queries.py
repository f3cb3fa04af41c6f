"""Queries (.sql) in flows: what a Prefect server starts reads only the folders that the worker's environment names."""

import os

import pytest

from surf2vec.flows.nightly import confine_queries
from surf2vec.tasks.ingest.sql_logs import FOLDERS_ENV


@pytest.mark.parametrize(
    ("deployment", "folders", "allowed"), [("", None, None), ("nightly", None, ""), ("nightly", "/logs", "/logs")]
)
def test_only_folders_of_the_worker(
    deployment: str, folders: str | None, allowed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", deployment)
    monkeypatch.setenv(FOLDERS_ENV, folders or "")
    if folders is None:
        monkeypatch.delenv(FOLDERS_ENV)
    confine_queries()
    assert os.environ.get(FOLDERS_ENV) == allowed
