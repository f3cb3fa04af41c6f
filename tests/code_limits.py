"""How large the code is: `python -m tests.code_limits` prints the lines by folder and fails above the limits in pyproject.toml.

Product code is surf2vec and the Python and SQL of flows, tasks, trainer, sql and infra. The limits of lines may only fall; an
issue that adds a feature names its allowance. Files, classes and functions have limits, those of the tests too: what is
larger has more than one job. A class name means one thing.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("flows", "tasks", "trainer", "sql", "infra")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["surf2vec"]


def list_files(folder: str) -> list[Path]:
    """Return the Python and SQL files of a folder."""
    return sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sql"))


def count_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text().splitlines())


def find_oversized(path: Path, text: str) -> Iterator[str]:
    """Yield what is larger than its limit in a Python file: the file, a class, a function."""
    name, num_lines = path.relative_to(ROOT), len(text.splitlines())
    if num_lines > SETTINGS["max_file_lines"]:
        yield f"{name} has {num_lines} lines, more than {SETTINGS['max_file_lines']}"
    limits = {ast.ClassDef: SETTINGS["max_class_lines"]} | dict.fromkeys(
        (ast.FunctionDef, ast.AsyncFunctionDef), SETTINGS["max_function_lines"]
    )
    for node in ast.walk(ast.parse(text)):
        limit = limits.get(type(node))
        if limit and (num_lines := node.end_lineno - node.lineno + 1) > limit:  # type: ignore[attr-defined]
            yield f"{name}: {node.name} has {num_lines} lines, more than {limit}"  # type: ignore[attr-defined]


def find_repeated(classes: Iterable[str]) -> Iterator[str]:
    """Yield the names that two classes have: a class name means one thing."""
    yield from (f"{count} classes are called {name}" for name, count in Counter(classes).items() if count > 1)


def list_classes(text: str) -> list[str]:
    """Return the names of the classes of a Python file."""
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def main() -> int:
    """Print the counts and what is too large; return the exit code."""
    files = [*(ROOT / "surf2vec").glob("*.py"), *(path for folder in PRODUCT for path in list_files(folder))]
    lines = Counter[str]()
    for path in files:
        lines["/".join(path.relative_to(ROOT).parts[:-1][:2])] += count_lines(path)
    for folder, number in sorted(lines.items()):
        print(f"{number:>7,}  {folder}")
    modules, tests = [path for path in files if path.suffix == ".py"], list_files("tests")
    counts = {
        "max_product_lines": (lines.total(), f"lines of product code in {len(files)} files"),
        "max_test_lines": (sum(map(count_lines, tests)), f"lines of tests in {len(tests)} files"),
        "max_format_skips": (sum(path.read_text().count("# fmt: skip") for path in modules), "times `# fmt: skip`"),
    }
    for name, (number, what) in counts.items():
        print(f"{number:>7,}  {what}; the limit is {SETTINGS[name]:,} ({name} in pyproject.toml)")
    problems = [
        text for path in modules + tests if path.suffix == ".py" for text in find_oversized(path, path.read_text())
    ]
    problems += find_repeated(name for path in modules for name in list_classes(path.read_text()))
    problems += [
        f"{number:,} {what}: delete some first" for name, (number, what) in counts.items() if number > SETTINGS[name]
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
