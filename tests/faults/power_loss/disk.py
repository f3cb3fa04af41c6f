"""Steps that change files below a folder, and the files that they lead to."""

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

Tree = dict[str, "Node"]
"""Paths below the folder, parents first, with what is there."""


@dataclass(eq=False)
class Inode:
    """A file, folder or symbolic link. names: of a folder, as the processes see it; size, data: likewise of a file."""

    number: int
    kind: int
    target: str = ""
    base: bytes = b""
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, "Inode"] = field(default_factory=dict)
    base_names: dict[str, "Inode"] = field(default_factory=dict)
    modified_ns: int | None = None  # of a file that was there at the beginning


@dataclass(frozen=True)
class Node:
    """What is at a path: `content` is the bytes of a file, the target of a symbolic link, None for a folder."""

    kind: int
    content: bytes | str | None
    number: int
    modified_ns: int | None = None


@dataclass(frozen=True)
class Data:
    """A write at an offset, or with `size` a change of the size, of a file."""

    inode: Inode
    offset: int = 0
    content: bytes = b""
    size: int | None = None


@dataclass(frozen=True)
class Names:
    """Changes of names that happen together: (folder, name, what it names now, or None)."""

    changes: tuple[tuple[Inode, str, Inode | None], ...]
    needs: int | None = None  # the step without which it is not on the disk either


@dataclass(frozen=True)
class Sync:
    """All steps before `since` of this inode (None: of all) are on the disk."""

    inode: Inode | None
    since: int


Step = Data | Names | Sync


class Disk:
    """The files below a folder at the beginning, taken to be on the disk, and the steps since."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps, self.marks = folder, [], []
        self.steps: list[Step]
        self.marks: list[tuple[int, str]]  # what was written to standard error, and after how many steps
        self._numbers = count()
        self.root = self._make(stat.S_IFDIR)

    def _make(self, kind: int, target: str = "", base: bytes = b"") -> Inode:
        return Inode(next(self._numbers), kind, target, base, bytearray(base))

    @classmethod
    def read(cls, folder: Path) -> "Disk":
        disk, known = cls(folder), {}

        def read_folder(inode: Inode, path: Path) -> None:
            for entry in os.scandir(path):
                about = entry.stat(follow_symlinks=False)
                key, kind = (about.st_dev, about.st_ino), stat.S_IFMT(about.st_mode)
                if key not in known:
                    target = os.readlink(entry.path) if entry.is_symlink() else ""
                    is_file = kind == stat.S_IFREG
                    known[key] = disk._make(kind, target, Path(entry.path).read_bytes() if is_file else b"")
                    known[key].modified_ns = about.st_mtime_ns if is_file else None
                    if kind == stat.S_IFDIR:
                        read_folder(known[key], Path(entry.path))
                inode.names[entry.name] = known[key]
            inode.base_names = dict(inode.names)

        read_folder(disk.root, folder)
        return disk

    # as processes see it

    def _parent(self, path: str) -> tuple[Inode, str]:
        """The folder that a path is in, and its name there. Follows symbolic links before the last part."""
        inode, parts = self.root, Path(path).relative_to(self.folder).parts
        place = self.folder
        for part in parts[:-1]:
            inode, place = inode.names[part], place / part
            if inode.kind == stat.S_IFLNK:
                place = Path(os.path.normpath(place.parent / inode.target))
                inode = self._walk(str(place))
        return inode, parts[-1]

    def _walk(self, path: str) -> Inode:
        if path == str(self.folder):
            return self.root
        folder, name = self._parent(path)
        return folder.names[name]

    def find(self, path: str) -> Inode | None:
        """What is at a path, symbolic links followed; None if nothing is."""
        try:
            inode = self._walk(path)
            while inode.kind == stat.S_IFLNK:
                path = os.path.normpath(os.path.join(os.path.dirname(path), inode.target))
                inode = self._walk(path)
        except KeyError:
            return None
        return inode

    def content(self, inode: Inode) -> bytearray:
        return inode.data

    def create(self, path: str, kind: int = stat.S_IFREG, target: str = "") -> Inode:
        inode = self._make(kind, target)
        self.link(inode, path)
        return inode

    def link(self, inode: Inode, path: str) -> None:
        folder, name = self._parent(path)
        self._change((folder, name, inode))

    def remove(self, path: str) -> None:
        folder, name = self._parent(path)
        self._change((folder, name, None))

    def rename(self, source: str, target: str) -> None:
        (old, old_name), (new, new_name) = self._parent(source), self._parent(target)
        adds, removes = (new, new_name, old.names[old_name]), (old, old_name, None)
        if old is new:
            self._change(adds, removes)
        else:
            self._change(adds)
            self._change(removes, needs=len(self.steps) - 1)

    def exchange(self, source: str, target: str) -> None:
        (one, one_name), (other, other_name) = self._parent(source), self._parent(target)
        first, second = one.names[one_name], other.names[other_name]
        self._change((one, one_name, second), (other, other_name, first))

    def _change(self, *changes: tuple[Inode, str, Inode | None], needs: int | None = None) -> None:
        for folder, name, inode in changes:
            set_name(folder.names, name, inode)
        self.steps.append(Names(changes, needs))

    def write(self, inode: Inode, offset: int, content: bytes) -> None:
        self._apply(Data(inode, offset, content))

    def truncate(self, inode: Inode, size: int) -> None:
        self._apply(Data(inode, size=size))

    def _apply(self, step: Data) -> None:
        apply_data(step.inode.data, step)
        self.steps.append(step)

    def sync(self, inode: Inode | None, since: int) -> None:
        self.steps.append(Sync(inode, since))

    def mark(self, text: str) -> None:
        self.marks.append((len(self.steps), text))

    def tree(self) -> Tree:
        """All that processes see."""
        return dict(walk(self.root, "", lambda inode: inode.names, lambda inode: bytes(inode.data)))

    def differences(self, folder: Path) -> list[str]:
        """The paths where the files below a folder are not what the steps lead to."""
        found, expected = Disk.read(folder).tree(), self.tree()
        alike = {
            path
            for path in found.keys() & expected.keys()
            if (found[path].kind, found[path].content) == (expected[path].kind, expected[path].content)
        }
        return sorted((found.keys() | expected.keys()) - alike)


def set_name(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def apply_data(data: bytearray, step: Data, start: int = 0, stop: int | None = None) -> None:
    """Apply a step, or only bytes `start` to `stop` of what it writes."""
    if step.size is not None:
        del data[step.size :]
        data.extend(bytes(step.size - len(data)))
        return
    content = step.content[start:stop]
    begin = step.offset + start
    if begin > len(data):
        data.extend(bytes(begin - len(data)))
    data[begin : begin + len(content)] = content


def walk(folder: Inode, path: str, names, content) -> Iterator[tuple[str, Node]]:  # type: ignore[no-untyped-def]
    for name, inode in sorted(names(folder).items()):
        place = f"{path}{name}"
        if inode.kind == stat.S_IFDIR:
            yield place, Node(inode.kind, None, inode.number)
            yield from walk(inode, f"{place}/", names, content)
        else:
            held = inode.target if inode.kind == stat.S_IFLNK else content(inode)
            yield place, Node(inode.kind, held, inode.number, inode.modified_ns if held == inode.base else None)


def put_on_disk(tree: Tree, folder: Path) -> None:
    """Make the files below a folder these, and no others."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    made: dict[int, Path] = {}
    for name, node in tree.items():
        path = folder / name
        if node.kind == stat.S_IFDIR:
            path.mkdir()
        elif node.number in made:
            os.link(made[node.number], path)
        elif node.kind == stat.S_IFLNK:
            path.symlink_to(str(node.content))
        else:
            assert isinstance(node.content, bytes)
            path.write_bytes(node.content)
            if node.modified_ns is not None:  # logs are known by their times, too
                os.utime(path, ns=(node.modified_ns, node.modified_ns))
            made[node.number] = path
