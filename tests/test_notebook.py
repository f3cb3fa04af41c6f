"""The notebook runs as it stands, and ends with a plot."""

import json
from pathlib import Path

import pytest

from tests.servers.python import run_python

NOTEBOOK = Path(__file__).parents[1] / "docs" / "quickstart.ipynb"
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=600).execute()
nbformat.write(notebook, "executed.ipynb")
"""


def test_it_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code"] == [[]] * 6


@pytest.mark.slow
def test_it_runs_and_ends_with_a_plot(tmp_path: Path) -> None:
    run_python("-c", EXECUTE, str(NOTEBOOK), cwd=tmp_path)
    cells = [
        cell for cell in json.loads((tmp_path / "executed.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]
    printed = "".join("".join(one.get("text", [])) for one in cells[1]["outputs"])
    hit, popularity = (
        float(part.split("%")[0].split()[-1]) for part in printed.partition("first 10:")[2].split(",")[:2]
    )
    assert hit > 2 * popularity
    assert [list(one["data"]) for cell in cells[3:5] for one in cell["outputs"]] == [["text/html", "text/plain"]] * 2
    assert any("image/png" in one.get("data", {}) for one in cells[-1]["outputs"])
