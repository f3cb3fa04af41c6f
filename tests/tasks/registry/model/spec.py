"""What the registry should say after each command. Knows nothing of files and of MLflow."""

from dataclasses import dataclass, field, replace
from typing import Any

from tests.tasks.registry.model.world import ROOTS, users_of

HELD_BACK, WRONG, GONE = "HeldBackError", "InputError", "DamageError"


class RefusedError(Exception):
    """A command that changes nothing: the name of its error."""


@dataclass
class Version:
    """before: the rollback target; served: when it was promoted; left: it was rolled back; back_from: what it replaced then."""

    root: str
    release: str | None  # None: forget names it
    users: frozenset[str]
    until: int
    gate: str | None = None
    reason: str | None = None
    before: int | None = None
    served: int = 0
    left: bool = False
    back_from: int | None = None


@dataclass
class Night:
    """reason: that of a person, known when the night was registered."""

    verdict: str
    users: frozenset[str]
    version: int = 0
    reason: str | None = None


@dataclass
class Spec:
    """complete: the versions of which each root has all files, as it is now; newest: the newest number ever given."""

    versions: dict[int, Version] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    forgotten: dict[str, frozenset[str]] = field(default_factory=lambda: dict.fromkeys(ROOTS, frozenset()))
    nights: dict[tuple[str, int], Night] = field(default_factory=dict)
    complete: dict[str, set[int]] = field(default_factory=dict)
    newest: int = 0

    @property
    def champion(self) -> Version | None:
        return self.versions.get(self.aliases.get("champion", 0))

    @property
    def lost(self) -> int | None:
        """The version that served last, if a person removed the champion's alias."""
        served = {one.served: number for number, one in self.versions.items() if one.served and not one.left}
        return served[max(served)] if served and not self.champion else None

    def night(self, root: str, day: int, verdict: str) -> None:
        """A new night, or the same again: that changes nothing, unless a person gave a reason since."""
        if self.lost:
            raise RefusedError(HELD_BACK)
        users = users_of(day, self.forgotten[root])
        run = self.nights.setdefault((root, day), Night(verdict if self.champion else "first", users))
        known = self.versions.get(run.version)
        if run.version and (known.reason if known else None) == run.reason:
            return
        same = {(one.root, one.release, one.users): number for number, one in self.versions.items()}
        run.version = same.get((root, f"r{day}", users)) or self._add(Version(root, f"r{day}", users, day))
        self._settle(run.version, run.verdict)
        run.reason = self.versions[run.version].reason

    def _add(self, version: Version) -> int:
        self.newest += 1
        self.versions[self.newest] = version
        return self.newest

    def _settle(self, number: int, verdict: str) -> None:
        version, champion = self.versions[number], self.champion
        if not version.served:
            version.gate = verdict
        if champion and (champion.until > version.until or champion.release == version.release):
            return
        if number <= self.aliases.get("champion", 0):
            return
        if number > self.aliases.get("challenger", 0):
            self.aliases["challenger"] = number
        if champion is None or (verdict != "held" and not version.left):
            self._serve(number)

    def _serve(self, number: int) -> None:
        version = self.versions[number]
        version.before = self.aliases.get("champion", version.before)
        version.served = 1 + max(one.served for one in self.versions.values())
        self.aliases["champion"] = number

    def promote(self, root: str, number: int | None, reason: str | None = None) -> None:
        number = number or self.aliases.get("challenger", 0)
        if number not in self.versions:
            raise RefusedError(WRONG)
        if number == self.aliases.get("champion"):
            return
        self._check(root, number)
        version = self.versions[number]
        if version.left or version.gate == "held":
            if not reason:
                raise RefusedError(HELD_BACK)
            version.gate, version.reason = "overridden", reason
        version.left, version.back_from = False, None
        self._serve(number)

    def _check(self, root: str, number: int) -> None:
        if self.versions[number].root != root:
            raise RefusedError(WRONG)
        if number not in self.complete[root]:
            raise RefusedError(GONE)

    def rollback(self, root: str, number: int | None = None) -> None:
        champion = self.champion
        if champion is None:
            raise RefusedError(WRONG)
        at, target = self.aliases["champion"], number or champion.before or 0
        if number == at or (number is None and champion.back_from):
            return
        version = self.versions.get(target)
        if version is None or not (version.served or target == champion.before):
            raise RefusedError(WRONG)
        self._check(root, target)
        for other, one in self.versions.items():
            one.left |= other == at or (one.served > 0 and other > target)
        version.left, version.back_from = False, at
        self.aliases["champion"] = target

    def forget(self, root: str, user: str) -> None:
        """All versions of the root that have the user go. What serves comes back without, with its verdict and its place."""
        self.forgotten[root] |= {user}
        going = {number for number, one in self.versions.items() if one.root == root and user in one.users}
        champion = self.champion
        if champion and self.aliases["champion"] in going:
            number = self._add(replace(champion, release=None, users=champion.users - {user}))
            self.aliases = {"champion": number, "challenger": number}
        for number in going:
            self.delete(root, "model_version", str(number))
        self.nights = {place: run for place, run in self.nights.items() if place[0] != root or user not in run.users}

    def gc(self, root: str) -> None:
        """Copies in a registry that several roots share stay."""

    def delete(self, _: str, what: str, name: str) -> None:
        self.versions.pop(int(name) if what == "model_version" else 0, None)
        self.aliases = {alias: at for alias, at in self.aliases.items() if at in self.versions and alias != name}

    def needed(self, root: str) -> set[int]:
        """The versions of a root that a promotion or a rollback may choose, which gc and the nights must leave complete."""
        named = {*self.aliases.values(), self.lost}
        if self.champion and not self.champion.back_from:
            named.add(self.champion.before)
        return {number for number, one in self.versions.items() if number in named and one.root == root}


def read_version(version: Any, root: str) -> dict[str, Any]:
    """What the registry says of a version of a root, in the words of `Version`."""
    tags = version.tags
    numbers = {"before": "champion_before", "back_from": "rolled_back_from"}
    return {name: int(tags[tag]) if tag in tags else None for name, tag in numbers.items()} | {
        "root": root, "release": tags["release"], "until": int(tags["window_until"][-2:]), "gate": tags.get("gate"),
        "reason": tags.get("override_reason"), "served": "promoted_at" in tags, "left": "rolled_back_at" in tags,
    }  # fmt: skip
