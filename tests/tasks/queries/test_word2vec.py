"""An export as a word2vec-format file: gensim reads every vector of it, and no altered export becomes a file."""

from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.queries.word2vec import export_word2vec
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import ConfigError, DamageError, SurfError
from surf2vec.trainer.gensim.word2vec_format import align_rows, read_word2vec
from surf2vec.trainer.system.files import read_json, write_json
from tests.roots.releases import NUM_ITEMS, VECTOR_SIZE, make_release, read_items, read_users

FORMATS = pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])


@FORMATS
@pytest.mark.parametrize("name", ["users.vec", "users.vec.gz"])
def test_gensim_reads_every_user(tmp_path: Path, name: str, binary: bool) -> None:
    from gensim.models import KeyedVectors

    folder = make_release(Root(tmp_path / "root"))
    events = []
    told = export_word2vec(folder, tmp_path / name, "users", binary, lambda *event: events.append(event))
    expected = {user_id.replace(" ", "%20"): vector for user_id, vector in read_users(folder).items()}
    keyed = KeyedVectors.load_word2vec_format(str(tmp_path / name), binary=binary)
    assert keyed.index_to_key == list(expected)
    np.testing.assert_array_equal(keyed.vectors, list(expected.values()))
    assert told == {
        "release": "r1",
        "out": str(tmp_path / name),
        "which": "users",
        "format": "binary" if binary else "text",
        "rows": len(expected),
        "vector_size": VECTOR_SIZE,
        "renamed": 1,
        "bytes": (tmp_path / name).stat().st_size,
    }
    assert events[-1] == (
        "progress",
        {"step": "word2vec", "done": len(expected), "total": len(expected), "unit": "users"},
    )


@FORMATS
def test_items_keep_their_order(tmp_path: Path, binary: bool) -> None:
    folder = make_release(Root(tmp_path / "root"))
    export_word2vec(folder, tmp_path / "items.vec", "items", binary)
    named = read_word2vec(tmp_path / "items.vec")
    urls, vectors = read_items(folder)
    assert named.names == urls
    np.testing.assert_array_equal(named.vectors, vectors)
    assert align_rows(named, urls[::-1]).tolist() == list(range(NUM_ITEMS))[::-1]


def test_calls_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    folder = make_release(Root(tmp_path / "root"))
    calls: list[tuple[Path, Path, str]] = [
        (tmp_path / "nowhere", tmp_path / "v.bin", "users", "surf2vec run.* or .*surf2vec pull"),
        (folder, tmp_path, "users", "is a folder: name the file"),
        (folder, folder / "manifest.json", "users", "inside the export"),
        (folder, tmp_path / "v.bin", "pages", "neither users nor items"),  # type: ignore[list-item]
    ]
    for export_dir, out, which, expected in calls:
        with pytest.raises(ConfigError, match=expected):
            export_word2vec(export_dir, out, which)
    assert not (tmp_path / "v.bin").exists()


def test_an_altered_export_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    folder = make_release(Root(tmp_path / "root"))
    (tmp_path / "v.bin").write_bytes(b"before")
    path = folder / "user_vectors" / "part-00003.parquet"
    content = path.read_bytes()
    for altered in (content[:-1], content[:50] + b"\0\0\0\0" + content[54:], None):
        path.unlink()
        if altered is not None:
            path.write_bytes(altered)
        with pytest.raises(DamageError, match="part-00003.parquet .*; bring release .* back with `surf2vec pull"):
            export_word2vec(folder, tmp_path / "v.bin", "users")
        path.write_bytes(content)
    assert (tmp_path / "v.bin").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "v.bin"]


@pytest.mark.parametrize(
    "change", [{"user_files": None}, {"vector_size": "eight"}, {"vector_size": 7}, {"vector_size": 0}, {"release": ...}]
)
def test_an_altered_manifest_is_an_error_that_is_meant_to_be_read(tmp_path: Path, change: dict) -> None:
    folder = make_release(Root(tmp_path / "root"))
    manifest = read_json(folder / "manifest.json") | change
    write_json(folder / "manifest.json", {key: value for key, value in manifest.items() if value is not ...})
    with pytest.raises(SurfError):
        export_word2vec(folder, tmp_path / "v.bin", "users")
    assert not (tmp_path / "v.bin").exists()
