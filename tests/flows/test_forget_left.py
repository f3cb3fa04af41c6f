"""The exit of `surf2vec forget` where copies that others registered still have the users."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from surf2vec import commands
from surf2vec.flows.cli import app
from surf2vec.trainer.errors import LeftElsewhereError

LEFT = {
    "place": "registry: s3://bucket/1/m-7",
    "rows": 57,
    "found": 2,
    "used_by": ["models:/theirs/1"],
    "is_here": True,
}
RESULT: dict[str, Any] = {
    "users": 3, "events": 9, "found": 0, "release": "r2", "model_version": 2, "places": [], "remains": [], "elsewhere": [LEFT]
}  # fmt: skip


@pytest.mark.parametrize(("elsewhere", "code"), [([LEFT], 1), ([], 0)])
def test_it_is_no_clean_success_and_the_proof_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, elsewhere: list[Any], code: int
) -> None:
    result = RESULT | {"elsewhere": elsewhere}
    monkeypatch.setattr("surf2vec.tasks.forgetting.forget.forget", lambda *asked: result)
    (tmp_path / "sources.json").write_text("{}")
    told = CliRunner().invoke(app, ["forget", "--root", str(tmp_path), "--json"])
    assert (told.exit_code, json.loads(told.stdout)) == (code, result)
    named = "registry: s3://bucket/1/m-7 (not ours, still has 2 of these users, used by models:/theirs/1)"
    assert (named in told.stderr) == bool(elsewhere)
    told = CliRunner().invoke(app, ["forget", "--root", str(tmp_path)])
    assert ("registry: s3://bucket/1/m-7" in told.stdout) == bool(elsewhere)


def test_the_deployments_run_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from surf2vec.flows import nightly

    monkeypatch.setattr(commands, "forget", lambda *asked, **named: RESULT)
    monkeypatch.setattr(nightly.PrefectReporter, "step", lambda self, name: nullcontext())
    with pytest.raises(LeftElsewhereError, match="not ours, still has 2 of these users"):
        nightly.forget.fn(tmp_path, tmp_path / "ids.txt")
