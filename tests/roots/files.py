"""The files of a folder, to compare them with those of another time or place."""

from pathlib import Path


def bytes_of(folder: Path, *names: str) -> dict[str, bytes]:
    """Every file below a folder but locks, by its path in it; with `names`: below these of its folders, or these files."""
    places = [folder / name for name in names or ("",)]
    paths = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*")))]
    files = [path for path in paths if path.is_file() and not path.name.endswith(".lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip(path: Path) -> bytes:
    """Alter the last bit of a file, which becomes another one where links share it. Returns what it was."""
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    return whole
