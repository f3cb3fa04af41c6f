"""Pull with --since: a folder of what changed, which three lines apply. And pulls that are killed."""

import json
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.pull_since import pull_since, write_difference
from surf2vec.tasks.release.release_reader import KEYS
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.pseudonyms import keyed_digest
from surf2vec.tasks.users.tombstones import Tombstones
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.system.files import read_json, verify_file
from tests.roots.release_series import State, bytes_of, export_state, many_users, publish_state, read_table
from tests.roots.releases import STORAGES
from tests.servers.python import run_python

CHAMPION = "models:/surf2vec-users@champion"
PAGE = Path(__file__).parents[3] / "docs" / "registry.md"
STATES: list[State] = [many_users(2000)]
STATES.append(STATES[0].change({f"user-{n}": 1 for n in range(40)} | {"new-1": 0}, ("user-100", "user-101"), {3: 1}))
STATES.append(STATES[1].change({"user-7": 2, "user-100": 1, "new-2": 0}, ("new-1", "user-102"), {30: 0}))


@pytest.fixture(scope="module", params=STORAGES)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """Three releases, each with what it changed."""
    made = Root(tmp_path_factory.mktemp("root"))
    # The second night is by user id as a full one is, the third has those it added last, as an incremental one.
    for number, state in enumerate(STATES, start=1):
        last = ("user-100", "new-2") if number == 3 else ()
        publish_state(made, STORAGES[request.param], f"r{number}", state, last)
    return made


def pull_version(root: Root, version: int, out: Path) -> Path:
    pull(f"models:/surf2vec-users/{version}", out, root.tracking_uri)
    return out


def apply_as_the_page_says(vectors: pl.DataFrame, changes: Path) -> pl.DataFrame:
    """What the three lines of docs/registry.md make of the older vectors and a folder of changes."""
    lines = re.search(r"```python\nimport polars as pl\n\n(changed = .*?)```", PAGE.read_text(), re.DOTALL)
    assert lines is not None
    assert len(lines[1].splitlines()) == 3
    names: dict[str, Any] = {"pl": pl, "vectors": vectors}
    exec(lines[1].replace('"changes/', f'"{changes}/'), names)
    return names["vectors"]


@pytest.mark.parametrize("since", [1, 2, 3])
def test_a_new_folder_gets_the_changes_which_the_pages_lines_apply(root: Root, tmp_path: Path, since: int) -> None:
    told = pull_since(CHAMPION, tmp_path / "changes", since, root.tracking_uri)
    older = read_table(root.export(f"r{since}"))
    made = apply_as_the_page_says(older, tmp_path / "changes")
    assert made.sort("user_id").equals(read_table(root.export("r3")))
    gone = pl.read_parquet(tmp_path / "changes" / "removed_users.parquet")["user_id"].to_list()
    assert gone == {1: ["user-101", "user-102"], 2: ["new-1", "user-102"], 3: []}[since]
    assert told["changed_users"] == {1: 42, 2: 3, 3: 0}[since]
    assert told["changed_items"] == {1: 4, 2: 1, 3: 0}[since]  # everybody visits the first two: their counts change
    again = pull_since(CHAMPION, tmp_path / "changes", since, root.tracking_uri)
    assert again == told


names = st.sampled_from([f"u{n}" for n in range(24)])
nights = st.tuples(
    st.dictionaries(names, st.integers(0, 3), max_size=8),
    st.lists(names, max_size=6).map(tuple),
    st.dictionaries(st.integers(0, 4), st.integers(0, 3), max_size=3),
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(nights, st.sampled_from(["float32", "float16", "int8"]), st.sampled_from([4, 8]))
def test_older_rows_and_the_difference_make_the_newer_release(night: Any, dtype: str, partitions: int) -> None:
    first = State({f"u{n}": 0 for n in range(12)} | {f"staying-{n}": 0 for n in range(90)}, [0] * 60)
    with tempfile.TemporaryDirectory() as folder:
        root, out = Root(Path(folder)), Path(folder) / "out"
        folders = [
            export_state(root, "r1", first, dtype=dtype),
            export_state(root, "r2", first.change(*night), partitions, dtype=dtype),
        ]
        files = write_difference([(one, read_json(one / "manifest.json")) for one in folders], out, Tombstones())
        for kind, key in KEYS.items():
            older, newer = (read_table(one, kind[:-1]) for one in folders)
            changed = [pl.read_parquet(out / name) for name in files if name.startswith(kind[:-1])]
            over = pl.concat([pl.read_parquet(out / f"removed_{kind}.parquet"), *(one.select(key) for one in changed)])
            assert pl.concat([older.join(over, on=key, how="anti"), *changed]).sort(key).equals(newer)
            if partitions == 4:
                assert sum(map(len, changed)) == len(newer.join(older, on=newer.columns, how="anti"))


def test_who_was_forgotten_since_is_gone(root: Root, tmp_path: Path) -> None:
    forgotten = Tombstones(b"key", {keyed_digest("user-7", b"key"): date(2026, 1, 1)})
    told = pull_since(CHAMPION, tmp_path / "changes", 1, root.tracking_uri, forgotten=forgotten)
    changes = tmp_path / "changes"
    gone = pl.read_parquet(changes / "removed_users.parquet")["user_id"].to_list()
    assert gone == ["user-101", "user-102", "user-7"]
    assert "user-7" not in read_table(changes)["user_id"].to_list()
    assert (told["changed_users"], told["removed_users"]) == (41, 3)
    for name, about in read_json(changes / "manifest.json")["files"].items():
        verify_file(changes / name, about)


def test_a_folder_with_a_whole_release_stays_and_a_version_that_is_not_there_is_told(
    root: Root, tmp_path: Path
) -> None:
    out = pull_version(root, 1, tmp_path / "out")
    before = bytes_of(out)
    with pytest.raises(InputError, match="holds a whole release, and --since gives only what changed: use another"):
        pull_since(CHAMPION, out, 1, root.tracking_uri)
    with pytest.raises(InputError, match="of the versions the newest are 1, 2, 3"):
        pull_since(CHAMPION, tmp_path / "new", 9, root.tracking_uri)
    assert bytes_of(out) == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_corrupt_file_is_named_and_what_is_there_stays(root: Root, tmp_path: Path) -> None:
    out = tmp_path / "changes"
    pull_since(CHAMPION, out, 1, root.tracking_uri)
    before = bytes_of(out)
    inside = [
        *(root.artifacts / "models").rglob("user_vectors/part-00000.parquet"),
        *root.path.glob("export/r3/user_vectors/part-00000.parquet"),
    ]
    kept = {path: path.read_bytes() for path in inside}
    for path in inside:
        path.write_bytes(kept[path][:-1])
    try:
        with pytest.raises(DamageError, match=r"user_vectors/part-00000.parquet of models:/surf2vec-users/\d has"):
            pull_since(CHAMPION, out, 2, root.tracking_uri)
    finally:
        for path, data in kept.items():
            path.write_bytes(data)
    assert bytes_of(out) == before
    assert pull_since(CHAMPION, out, 2, root.tracking_uri)["changed_users"] == 3


# For every few steps: a child that is killed before it, then one that finishes; prints a line a step.
DYING = """
import json, os, shutil, sys
from pathlib import Path
from surf2vec.tasks.registry import pull
from surf2vec.tasks.registry import pull_since
from surf2vec.trainer.system import files
from tests.roots.release_series import bytes_of

def count_down(module, name):
    real = getattr(module, name)
    def dying(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        return real(*arguments, **named)
    setattr(module, name, dying)

def run(steps):
    global left
    left = steps
    child = os.fork()
    if child == 0:
        told = make("models:/surf2vec-users@champion", out, *since, sys.argv[4])
        told_path.write_text(json.dumps(told))
        os._exit(0)
    return os.waitpid(child, 0)[1]

older, newer, out = map(Path, sys.argv[1:4])
told_path = out.parents[1] / "told.json"
make, since = (pull_since.pull_since, [1]) if sys.argv[5] == "since" else (pull.pull, [])
for module, name in (
    (pull, "_fetch"), (os, "replace"), (Path, "rename"), (files, "sync_path"), (files, "_exchange"),
):
    count_down(module, name)
for step in range(2, 90, 7):
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(older, out)
    ended = run(step)
    between = bytes_of(out)
    last = run(0)
    told = json.loads(told_path.read_text())
    told_path.unlink()
    is_new = bytes_of(out) == bytes_of(newer)
    left_over = sorted(path.name for path in out.parent.iterdir())
    print(json.dumps([ended, last, between in (bytes_of(older), bytes_of(newer)), is_new, told["fetched_bytes"], left_over]))
    if ended == 0:
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["since", "whole"])
@pytest.mark.parametrize("root", ["reference"], indirect=True)
def test_killed_anywhere_the_folder_is_old_or_new_and_the_next_call_goes_on(
    root: Root, tmp_path: Path, way: str
) -> None:
    older, newer = tmp_path / "out" / "older", root.export("r3")
    if way == "since":
        pull_since(CHAMPION, older, 2, root.tracking_uri)
        newer = tmp_path / "newer"
        pull_since(CHAMPION, newer, 1, root.tracking_uri)
    else:
        pull_version(root, 1, older)
    folders = [str(older), str(newer), str(tmp_path / "out" / "out")]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    printed = run_python("-c", DYING, *folders, root.tracking_uri, way, TMPDIR=str(scratch))
    assert list(scratch.iterdir()) == []
    steps = [json.loads(line) for line in printed.splitlines()]
    assert [ended for ended, *_ in steps] == [9] * (len(steps) - 1) + [0]
    assert len(steps) >= 3
    for _, last, is_old_or_new, is_new, _, left_over in steps:
        assert (last, is_old_or_new, is_new, left_over) == (0, True, True, ["older", "out"])
    fetched = [fetched_bytes for *_, fetched_bytes, _ in steps]
    assert fetched[0] > min(fetched[:-1])  # what a killed call fetched whole is not fetched again


@pytest.mark.slow
@pytest.mark.parametrize("root", ["reference"], indirect=True)
def test_two_pulls_at_once_into_one_folder(root: Root, tmp_path: Path) -> None:
    call = (
        "import sys; from pathlib import Path; from surf2vec.tasks.registry.pull import pull; "
        "pull(sys.argv[1], Path(sys.argv[2]), sys.argv[3])"
    )
    commands = [
        [sys.executable, "-c", call, uri, str(tmp_path / "out"), root.tracking_uri]
        for uri in ("models:/surf2vec-users/1", CHAMPION, CHAMPION)
    ]
    running = [subprocess.Popen(command, cwd=Path(__file__).parents[3], stderr=subprocess.PIPE) for command in commands]
    for process in running:
        message = process.communicate(timeout=120)[1]
        assert process.returncode == 0, message
    assert bytes_of(tmp_path / "out") in [bytes_of(root.export(release)) for release in ("r1", "r3")]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
