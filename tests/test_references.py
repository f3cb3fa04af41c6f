"""What docstrings, comments and documents refer to exists: files by their paths, our modules and the names in them."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LISTED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
FOLDERS = {str(parent) for name in LISTED for parent in Path(name).parents}
PATH = re.compile(r"(?<![\w./:*{}<-])((?:[\w.-]+/)+[\w-]+\.(?:py|sql|md|c|toml|csv|yaml))\b")
MODULE = re.compile(r"\b((?:surf2vec\.(?:flows|tasks|trainer|sql|infra)|tests)(?:\.[a-z_]\w*)+)")


def read_prose(path: Path) -> str:
    """Return the docstrings and comments of Python, the comments of SQL, all of Markdown; without what names a revision."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        text = "\n".join(line for line in text.splitlines() if line.startswith("--"))
    elif path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
        statements = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
        values = [statement.value for statement in statements if isinstance(statement, ast.Constant)]
        text = "\n".join([*comments, *(value for value in values if isinstance(value, str))])
    return re.sub(r"[^\n|]*(?:\n[^\n|]*)?revision [0-9a-f]{7}[^\n|]*", "", text)  # what an earlier revision has


def find_missing(path: Path, text: str) -> list[str]:
    """Return the paths and modules of this repository that a file's prose names and that are not there."""
    places = (path.parent, ROOT)
    paths = [name for name in PATH.findall(text) if name.partition("/")[0] in FOLDERS]
    missing = [name for name in paths if not any((place / name).exists() for place in places)]
    return missing + [name for name in MODULE.findall(text) if not is_there(name)]


def is_there(name: str) -> bool:
    """Whether this is a module, or a name that stands in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:end])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.exists():
                return end == len(parts) or re.search(rf"\b{parts[end]}\b", file.read_text()) is not None
    return ROOT.joinpath(*parts).is_dir()


@pytest.mark.parametrize("folder", [".", "docs", "surf2vec", "flows", "tasks", "trainer", "sql", "infra", "tests"])
def test_what_the_text_refers_to_is_there(folder: str) -> None:
    names = [name for name in LISTED if name.startswith(f"{folder}/") or (folder == "." and "/" not in name)]
    paths = [ROOT / name for name in names if name.endswith((".py", ".sql", ".md")) and name != "CHANGELOG.md"]
    missing = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if path.exists() and (found := find_missing(path, read_prose(path)))
    }
    assert paths
    assert missing == {}


def test_untrue_references_are_found() -> None:
    untrue = [
        "trainer/system/parent.py",
        "tests/no.py",
        "surf2vec.trainer.nothing",
        "surf2vec.trainer.system.files.read_jsn",
    ]
    assert find_missing(ROOT / "README.md", f"See {', '.join(untrue)}; not a/b.py.") == untrue
    true = "trainer/system/files.py, surf2vec.trainer.system.files.read_json, tests.quick"
    assert find_missing(ROOT / "README.md", true) == []
