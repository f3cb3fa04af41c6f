"""What the registry should say after each command, and after each write of one. Knows nothing of files and of MLflow."""

from dataclasses import dataclass, field, replace
from typing import Any

from tests.tasks.registry.model.world import ROOTS, users_of

HELD_BACK, WRONG, GONE, UNFINISHED = "HeldBackError", "InputError", "DamageError", "ResourceError"
NOBODY: frozenset[str] = frozenset()


class RefusedError(Exception):
    """A command that changes nothing more: the name of its error."""


@dataclass
class Version:
    """before: the rollback target; served: when it was promoted; left: it was rolled back; back_from: what it replaced then.

    made: the record of its night when it was registered; None: a `forget` made it.
    """

    root: str
    release: str
    users: frozenset[str]
    until: int
    gate: str | None = None
    reason: str | None = None
    before: int | None = None
    served: int = 0
    left: bool = False
    back_from: int | None = None
    made: "Night | None" = None


@dataclass
class Night:
    """The record of a night that trained. is_first: nothing was compared; version: 0 until the registration is recorded.

    reason: that of a person, known at the registration.
    """

    users: frozenset[str]
    verdict: str = ""
    is_first: bool = False
    version: int = 0
    reason: str | None = None


@dataclass
class Spec:
    """complete: the versions of which each root has all files, as it is now; newest: the newest number ever given.

    pushed: what readers of each root's store get: a version and its users; forgetting: roots in which a `forget` was killed;
    lost: roots that are being restored; gone: versions whose files were lost with a machine; before: what was so after each
    write of the last command.
    """

    is_server: bool = False
    versions: dict[int, Version] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    forgotten: dict[str, frozenset[str]] = field(default_factory=lambda: dict.fromkeys(ROOTS, NOBODY))
    nights: dict[tuple[str, int], Night] = field(default_factory=dict)
    pushed: dict[str, tuple[Version, frozenset[str]]] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    gone: frozenset[int] = frozenset()
    forgetting: frozenset[str] = frozenset()
    complete: dict[str, set[int]] = field(default_factory=dict)
    newest: int = 0
    before: list["Spec"] = field(default_factory=list, repr=False)

    def copy(self) -> "Spec":
        versions = {number: replace(one) for number, one in self.versions.items()}
        nights = {place: replace(run) for place, run in self.nights.items()}
        kept: dict[str, Any] = {name: dict(getattr(self, name)) for name in ("aliases", "forgotten", "pushed")}
        return replace(self, versions=versions, nights=nights, before=[], **kept)

    def wrote(self) -> None:
        """A write has ended: if the command is killed later, what is so now stays."""
        self.before.append(self.copy())

    @property
    def champion(self) -> Version | None:
        return self.versions.get(self.aliases.get("champion", 0))

    @property
    def last_served(self) -> int | None:
        """The champion or, if a person removed its alias, the version that served last."""
        served = {one.served: number for number, one in self.versions.items() if one.served and not one.left}
        return self.aliases.get("champion") or (served[max(served)] if served else None)

    def _refuse(self, root: str) -> None:
        if root in self.forgetting:
            raise RefusedError(UNFINISHED)

    def night(self, root: str, day: int, verdict: str) -> None:
        """A new night, or the same again: that changes nothing, unless a person gave a reason since."""
        self._refuse(root)
        last = None if self.champion else self.versions.get(self.last_served or 0)
        if last and not ((root, day) in self.nights and (last.root, last.release) == (root, f"r{day}")):
            raise RefusedError(HELD_BACK)
        run = self.nights.setdefault((root, day), Night(users_of(day, self.forgotten[root])))
        self.wrote()
        if not run.version:
            self._judge(root, f"r{day}", run, verdict)
        known = self.versions.get(run.version)
        if run.version and (known.reason if known else None) == run.reason:
            return
        number = self._register(Version(root, f"r{day}", run.users, day, made=replace(run)))
        self._settle(number, run.verdict)
        run.version, run.reason = number, self.versions[number].reason
        self.wrote()

    def _judge(self, root: str, release: str, run: Night, verdict: str) -> None:
        """What served is not compared with itself, but with what served before it."""
        has_served = any(one.served and (one.root, one.release) == (root, release) for one in self.versions.values())
        if not (run.verdict and (has_served or (self.champion and self.champion.release == release))):
            run.is_first = not self.champion
        run.verdict = "first" if run.is_first else verdict
        self.wrote()

    def _register(self, version: Version) -> int:
        """The number of the version with these files, which may be there."""
        same = {(one.root, one.release, one.users): number for number, one in self.versions.items()}
        number = same.get((version.root, version.release, version.users))
        if number is None:
            self.newest = number = self.newest + 1
            self.versions[number] = version
            self.wrote()
        return number

    def _settle(self, number: int, verdict: str) -> None:
        version, champion = self.versions[number], self.champion
        gate, aliases = version.gate if version.served else verdict, list[str]()
        if not (champion and is_behind(version, champion)) and number > self.aliases.get("champion", 0):
            aliases += ["challenger"] * (number > self.aliases.get("challenger", 0))
            aliases += ["champion"] * (champion is None or (verdict != "held" and not version.left))
        self._move(number, aliases, gate=gate, **(self._promoted(number) if "champion" in aliases else {}))

    def _promoted(self, number: int) -> dict[str, Any]:
        """What served last is the rollback target; of what served last itself, its own stays, if it replaced that."""
        version, last = self.versions[number], self.last_served
        before = last if last != number else None if version.back_from else version.before
        return {"before": before, "served": 1 + max(one.served for one in self.versions.values())}

    def _move(self, number: int, aliases: list[str], **tags: Any) -> None:
        """Change tags of a version, then let aliases name it: in one transaction, but on a server one after the other."""
        version, gate = self.versions[number], tags.pop("gate", None)
        version.gate = gate or version.gate
        if self.is_server:
            self.wrote()
        for name, value in tags.items():
            setattr(version, name, value)
        for alias in aliases:
            if self.is_server:
                self.wrote()
            self.aliases[alias] = number
        self.wrote()

    def promote(self, root: str, number: int | None, reason: str | None = None) -> None:
        number = number or self.aliases.get("challenger", 0)
        if number not in self.versions:
            raise RefusedError(WRONG)
        if number == self.aliases.get("champion"):
            return
        self._check(root, number)
        version = self.versions[number]
        is_held = version.left or version.gate == "held" or (version.gate == "overridden" and not version.reason)
        if is_held and not reason:
            raise RefusedError(HELD_BACK)
        given = reason if is_held else version.reason
        tags = {"gate": "overridden", "reason": given} if given else {}
        self._move(number, ["champion"], **tags, **self._promoted(number), left=False, back_from=None)

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
        for other, one in sorted(self.versions.items()):
            if other == at or (one.served and not one.left and other > target):
                self._move(other, [], left=True)
        self._move(
            target, ["champion"], served=1 + max(one.served for one in self.versions.values()), left=False, back_from=at
        )

    def forget(self, root: str, user: str) -> None:
        """All versions of the root that have the user go. What serves comes back without, with its verdict and its place."""
        wanted = {user} | (self.forgotten[root] if root in self.forgetting else NOBODY)
        self.forgetting |= {root}
        self.wrote()
        self.forgotten[root] |= {user}
        self.wrote()
        champion, at = self.champion, self.aliases.get("champion", 0)
        if champion and champion.root == root and wanted & champion.users:
            release = f"{champion.release} without {' '.join(sorted(self.forgotten[root]))}"
            number = self._register(Version(root, release, champion.users - wanted, champion.until))
            tags = {name: getattr(champion, name) for name in ("gate", "reason", "before", "served", "back_from")}
            self.gone |= {number} if at in self.gone else set()
            self._move(number, ["challenger", "champion"], **tags, left=False)
        for number in [
            number for number, one in sorted(self.versions.items()) if one.root == root and wanted & one.users
        ]:
            self.delete(root, "model_version", str(number))
            self.wrote()
        self.nights = {place: run for place, run in self.nights.items() if place[0] != root or not wanted & run.users}
        self.wrote()
        self.forgetting -= {root}

    def gc(self, root: str) -> None:
        """Copies in a registry that several roots share stay."""
        self._refuse(root)

    def push(self, root: str) -> None:
        if self.champion is None:
            raise RefusedError(WRONG)
        self.pushed[root] = replace(self.champion), self.champion.users - self.forgotten[root]

    def restore(self, root: str, number: int) -> None:
        """The machine with the root is lost, and a new one is made of a version."""
        self.lost |= {root}
        self.nights = {place: run for place, run in self.nights.items() if place[0] != root}
        self.gone |= {one for one, version in self.versions.items() if version.root == root}
        self.wrote()
        if number not in self.versions:
            raise RefusedError(WRONG)
        version = self.versions[number]
        if version.made:
            self.nights[root, version.until] = replace(version.made)
        self.wrote()
        self.gone, self.lost = self.gone - {number}, self.lost - {root}

    def delete(self, _: str, what: str, name: str) -> None:
        """With the champion goes what only it needed: what served before, and what that replaced, need not be complete."""
        self.versions.pop(int(name) if what == "model_version" else 0, None)
        self.aliases = {alias: at for alias, at in self.aliases.items() if at in self.versions and alias != name}
        for root in ROOTS:
            self.gone |= list_needed(self, root) - self.complete[root]


def list_needed(spec: Spec, root: str) -> set[int]:
    """The versions of a root that a promotion or a rollback may choose, which gc and the nights must leave complete."""
    named = {*spec.aliases.values(), spec.last_served}
    if (last := spec.versions.get(spec.last_served or 0)) and not last.back_from:
        named.add(last.before)
    return {number for number, one in spec.versions.items() if number in named - spec.gone and one.root == root}


def is_behind(version: Version, champion: Version) -> bool:
    """Whether a night does not let its version take the champion's place: it is older, or served and was replaced."""
    is_older = champion.until > version.until or champion.release == version.release
    return is_older or champion.served > version.served > 0


def read_version(version: Any, root: str) -> dict[str, Any]:
    """What the registry says of a version of a root, in the words of `Version`."""
    tags = version.tags
    numbers = {"before": "champion_before", "back_from": "rolled_back_from"}
    return {name: int(tags[tag]) if tag in tags else None for name, tag in numbers.items()} | {
        "root": root, "release": tags["release"], "until": int(tags["window_until"][-2:]), "gate": tags.get("gate"),
        "reason": tags.get("override_reason"), "served": "promoted_at" in tags, "left": "rolled_back_at" in tags,
    }  # fmt: skip
