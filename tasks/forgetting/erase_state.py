"""Corpora and generations of a root without some users: those that stay in use, the store's own and the champion's."""

from dataclasses import dataclass
from typing import Any

from tasks.forgetting.erase_corpus import erase_from_corpus, find_rows
from tasks.registry.release_state import find_generation
from tasks.root.run import Root
from tasks.users.user_set import UserSet
from trainer.errors import DamageError
from trainer.store.erase import erase_rows, write_generation
from trainer.store.generation import Generation, has_generation, is_outdated, open_generation
from trainer.store.manifests import STORE_MANIFEST, next_generation, read_manifest
from trainer.store.tokens import open_corpus
from trainer.system.files import digest_json


@dataclass(frozen=True)
class Erased:
    """A generation without the users: its number, its corpus, and the entries of its users' files, before and after."""

    generation: int
    window_id: str
    users_before: dict[str, Any]
    users: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        return {"generation": self.generation, "window_id": self.window_id, "users": self.users}


def erase_state(root: Root, wanted: UserSet, export: dict[str, Any] | None, release: str | None) -> Erased | None:
    """Take the users out of the store's generation, and out of that of a release, which is then pinned as `release`.

    export: the manifest of the champion's export, where it has any of the users; returns what became of its generation, None
    where the store has it not. The generations and corpora before stay until nobody names them. The caller holds the store's
    lock. Raises DamageError when a generation and its corpus do not fit, or a file was altered.
    """
    served = find_generation(root, export) if export else None
    champion = _erase_pinned(root, served, wanted, release) if served and release else None
    if not has_generation(root.store) or is_outdated(root.store):
        return champion
    current = open_generation(root.store)
    if champion and champion.users_before == current.manifest["users"]:
        if current.manifest["window_id"] != champion.window_id:
            _write(current, STORE_MANIFEST, champion)
    elif erased := _erase(root, current, wanted):
        _write(current, STORE_MANIFEST, erased)
    return champion


def _erase_pinned(root: Root, served: Generation, wanted: UserSet, release: str) -> Erased | None:
    """The generation of the champion without the users, pinned under the new release's name, unless a call that died did so."""
    path = root.store / "pinned" / f"{release}.json"
    if path.exists():
        there = read_manifest(path)
        return Erased(there["generation"], there["window_id"], served.manifest["users"], there["users"])
    erased = _erase(root, served, wanted)
    if erased:
        _write(served, f"pinned/{release}.json", erased)
    return erased


def _erase(root: Root, generation: Generation, wanted: UserSet) -> Erased | None:
    """Corpus and users' files without the users; None where the generation has none of them."""
    folder = root.corpus(generation.manifest["window_id"])
    if not folder.exists():
        raise DamageError(
            f"{folder} is missing, so nobody can be told from the vectors of generation {generation.generation} in {root.store}: "
            f"bring back a copy, or remove {root.store / STORE_MANIFEST} and train anew; then give the same command again"
        )
    corpus = open_corpus(folder)
    rows = find_rows(corpus, wanted)
    if not rows:
        return None
    number = next_generation(root.store)
    users = erase_rows(generation, rows, corpus.users.tolist(), number)
    window_id = erase_from_corpus(root, corpus, rows).manifest["window_id"]
    return Erased(number, window_id, generation.manifest["users"], users)


def _write(generation: Generation, name: str, erased: Erased) -> None:
    known_as = digest_json({"forgotten": generation.manifest["identity"], "window_id": erased.window_id})
    write_generation(generation, name, erased.values | {"identity": known_as})
