"""An image is a safetensors file that others can read; what was altered, cut or mixed up is refused."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.store.images import image_of, map_image, read_image, read_pages, verify_image, write_image
from surf2vec.trainer.system.memory import PAGE_BYTES, make_pages


def some_arrays(num_rows: int, num_dims: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(num_rows)
    return {
        "vectors": rng.normal(size=(num_rows, num_dims)).astype(np.float32),
        "squares": rng.random(num_rows, dtype=np.float32),
    }


@pytest.mark.parametrize(("num_rows", "num_dims"), [(0, 4), (1, 1), (3, 5), (1000, 128), (4321, 7)])
def test_others_read_the_file(tmp_path: Path, num_rows: int, num_dims: int) -> None:
    arrays = some_arrays(num_rows, num_dims)
    path = tmp_path / "a.safetensors"
    about = write_image(path, image_of(arrays))
    assert path.stat().st_size == about["bytes"]
    found = load_file(path)
    back, mapped = read_image(path, about), map_image(path, about)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(back.arrays[name], array)
        np.testing.assert_array_equal(mapped[name], array)
    verify_image(path, about)


def test_pages_are_used_again_and_begin_where_the_disk_may_write(tmp_path: Path) -> None:
    pages = make_pages(100_000)
    image = image_of(some_arrays(100, 16), pages)
    assert np.shares_memory(image.pages, pages)
    assert image.pages.ctypes.data % PAGE_BYTES == 0
    about = write_image(tmp_path / "a", image)
    assert np.shares_memory(read_image(tmp_path / "a", about, pages).arrays["vectors"], pages)
    larger = image_of(some_arrays(10_000, 16), pages)
    assert not np.shares_memory(larger.pages, pages)


@pytest.mark.parametrize("place", [0, 9, PAGE_BYTES, PAGE_BYTES + 12_345, -1])
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a"
    about = write_image(path, image_of(some_arrays(5000, 16)))
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    for look in (read_image, verify_image, map_image):
        with pytest.raises(DamageError, match="its bytes were altered"):
            look(path, about)
    path.write_bytes(data[:-1])
    with pytest.raises(DamageError, match="bytes where its manifest says"):
        read_image(path, about)
    path.unlink()
    with pytest.raises(DamageError, match="is missing"):
        verify_image(path, about)


@pytest.mark.parametrize("num_bytes", [0, 100, PAGE_BYTES])
def test_a_file_that_ends_before_its_bytes_is_damaged_whatever_the_pages_held(tmp_path: Path, num_bytes: int) -> None:
    path, spare = tmp_path / "file", make_pages(2 * PAGE_BYTES)
    path.write_bytes(bytes(num_bytes))
    spare[:] = 7
    assert read_pages(path, num_bytes, spare)[:num_bytes].tobytes() == bytes(num_bytes)
    with pytest.raises(DamageError, match=rf"ends after {num_bytes:,} of 5,000 bytes"):
        read_pages(path, 5000, spare)
