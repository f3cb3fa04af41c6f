"""Moves the alias `champion` to the release that serves: at a registration, in `surf2vec promote` and `surf2vec rollback`.

Only aliases and tags change, never a vector. A version has the tags `gate` (passed, held, first, overridden), `held_by`,
`override_reason`, `champion_before` (the version that served before the promotion: the rollback target), `promoted_at`,
`rolled_back_at`, and `rolled_back_from` on the version that serves again. Tags are set first and the alias last, or all in one
transaction, so repeating a killed call completes it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.corpus.window import ends_before
from surf2vec.tasks.registry.releases import move_aliases, read_registry
from surf2vec.tasks.registry.versions import CHALLENGER, CHAMPION, GROUPS, Registered, Version, alias_of
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.root.identity import ROOT_TAG, read_root_id, registry_uri
from surf2vec.tasks.root.records import GateStep
from surf2vec.tasks.root.run import Root, private_files
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.errors import DamageError, HeldBackError, InputError
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.writer import (
    lock_store,
    open_pinned,
    pin_generation,
    remove_unreferenced,
    unpin_generations,
)
from surf2vec.trainer.system.files import digest_file, lock, read_json, verify_size


class ChampionMovedError(HeldBackError):
    """The champion is not the release that the gate compared this one with."""


@contextmanager
def lock_aliases(root: Root) -> Iterator[None]:
    """Hold the lock for moving aliases and for removing releases that no alias needs.

    The root's lock of writers does not fit: a night holds it for hours, and a rollback must not wait for a night. Nothing is
    trained, copied or sent under this lock. It is taken after the root's lock and before the store's.
    """
    with private_files(root), lock(root.path / ".aliases.lock"):
        yield


def refuse_lost_champion(root: Root, registered: Registered, release: str | None = None) -> None:
    """Raise HeldBackError if releases served but none has the alias champion: without it the next would serve unchecked.

    release: that of the night, which may be the last that served: it was killed before it moved the alias, and completes that.
    """
    last = registered.last_served
    if last and not registered.champion and last not in versions_of(root, registered, release):
        raise HeldBackError(
            f"the alias {CHAMPION} of {last.name} was removed in the registry, so there is nothing to compare a night "
            f"with. Of the versions that are left, {last.number} ({last.release}) served last. `surf2vec promote VERSION`, "
            "in the root that made it, lets it or another serve"
        )


def versions_of(root: Root, registered: Registered, release: str | None) -> list[Version]:
    """Return the versions of a release of this root; another root may have one with the same name."""
    own = {"release": release, ROOT_TAG: read_root_id(root)}
    return [one for one in registered.versions if own.items() <= one.tags.items()]


def settle_aliases(
    root: Root, publish: PublishConfig, number: int, gate: GateStep | None, replaced: Version | None = None
) -> str | None:
    """Tag a version with the gate's verdict (None: it passed) and move the aliases. Return its alias.

    replaced: the champion in whose place the version serves, with its verdict and its rollback target.
    Raises ChampionMovedError and changes nothing if the version would serve but was compared with another champion,
    HeldBackError if the alias of the champion was removed.
    """
    with lock_aliases(root):
        registered = read_registry(root, publish)
        version, champion = _get_version(registered, number), registered.champion
        if replaced:
            return _replace_champion(registry_uri(root, publish), version, registered, replaced)
        tags: dict[str, str | None] = {}
        if gate and "promoted_at" not in version.tags:
            tags = {"gate": gate.verdict, "held_by": ", ".join(gate.held_by) or None}
        may_serve = (gate is None or gate.passes is not False) and "rolled_back_at" not in version.tags
        aliases = choose_aliases(number, registered.aliases, may_serve)
        is_older = champion and ends_before(version.tags.get("window_until"), champion.tags.get("window_until"))
        is_equal = champion and champion.tags.get("release") == version.tags["release"]  # of another root
        # The version served, or was to, and the champion was promoted after it.
        is_replaced = champion and champion.tags.get("promoted_at", "") > version.tags.get("promoted_at", "~")
        if is_older or is_equal or is_replaced:
            aliases = []
        if CHAMPION in aliases:
            refuse_lost_champion(root, registered, version.tags["release"])
            serves = registered.serving
            was_removed = not champion and registered.last_served  # the alias of this version, which serves again
            if gate and serves != gate.champion and not was_removed:
                before, now = (f"release {one}" if one else "no champion" for one in (gate.champion, serves))
                raise ChampionMovedError(
                    f"version {number} was compared with {before}, but {now} serves now: the same command compares it again"
                )
            tags |= _promotion_tags(registered, version)
        move_aliases(registry_uri(root, publish), version, tags, aliases)
    return alias_of(registered.aliases | dict.fromkeys(aliases, number), number)


def _replace_champion(uri: str, version: Version, registered: Registered, replaced: Version) -> str:
    serves = registered.aliases.get(CHAMPION)
    if serves not in (replaced.number, version.number):
        raise ChampionMovedError(
            f"version {version.number} was made of version {replaced.number}, which serves no longer: run the same command again"
        )
    if serves != version.number:
        tags = {name: replaced.tags.get(name) for name in ("gate", *GROUPS["surf2vec_serving"])}
        move_aliases(uri, version, tags | {"rolled_back_at": None}, [CHALLENGER, CHAMPION])
    return CHAMPION


def choose_aliases(version: int, aliases: dict[str, int], may_serve: bool) -> list[str]:
    """Return the aliases for a version, in order. Without a champion it serves. A version older than the champion gets none."""
    champion, challenger = aliases.get(CHAMPION), aliases.get(CHALLENGER, 0)
    if champion is not None and version <= champion:
        return []
    taken = [CHALLENGER] if version > challenger else []
    return [*taken, CHAMPION] if may_serve or champion is None else taken


def promote(
    root: Root, publish: PublishConfig, number: int | None, override: str | None, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """Make a version the champion, by default the challenger. Returns a summary. Changes nothing if it is the champion already.

    Raises HeldBackError if the gate held the version or it was rolled back, unless `override` gives a reason; InputError if
    there is no such version; DamageError if its export or generation is gone.
    """
    started = time.monotonic()
    with lock_aliases(root):
        registered = read_registry(root, publish)
        if number is None and CHALLENGER not in registered.aliases:
            raise InputError(f"{publish.model_name} has no challenger in this registry: run `surf2vec run` first")
        version = _get_version(registered, number or registered.aliases[CHALLENGER])
        before = registered.aliases.get(CHAMPION)
        if version.number == before:
            return _describe(version, before, f"version {before} serves already", started)
        _check_complete(root, version)
        objection, gate = None, version.tags.get("gate")
        # By an earlier call, which may have been killed before it moved the alias.
        given = version.tags.get("override_reason")
        if "rolled_back_at" in version.tags:
            objection = f"version {version.number} was rolled back at {version.tags['rolled_back_at']}"
        elif gate == "held" or (gate == "overridden" and not given):
            objection = f"version {version.number} was held back by {version.tags.get('held_by', 'the gate')}"
        if objection and not override:
            raise HeldBackError(f'{objection}: to promote it anyway, give --override "REASON"')
        given = override if objection else given
        tags = _promotion_tags(registered, version) | {"rolled_back_at": None, "rolled_back_from": None}
        if given:
            tags |= {"gate": "overridden", "override_reason": shown(given)}
        move_aliases(registry_uri(root, publish), version, tags, [CHAMPION])
        reason = f", though {objection}: {override}" if objection else f": {given}" if given else ""
        message = f"version {version.number} (release {version.tags['release']}) serves now{reason}"
        log(on_event, message)
    return _describe(version, before, message, started)


def rollback(
    root: Root, publish: PublishConfig, number: int | None, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """Make the previous champion, or another version that served, the champion again. The next night builds on it.

    Repeating the call changes nothing. Raises InputError without an earlier champion, DamageError if its files are gone.
    """
    started = time.monotonic()
    with lock_aliases(root):
        registered = read_registry(root, publish)
        if CHAMPION not in registered.aliases:
            raise InputError(f"{publish.model_name} has no champion in this registry: there is nothing to roll back")
        champion = _get_version(registered, registered.aliases[CHAMPION])
        if number == champion.number or (number is None and champion.tags.get("rolled_back_from")):
            since = champion.tags.get("rolled_back_from")
            serves = f"version {champion.number} serves already{f', rolled back from version {since}' if since else ''}"
            message = f"{serves}: nothing was changed; `surf2vec rollback VERSION` goes to another"
            return _describe(champion, champion.number, message, started)
        before = int(champion.tags.get("champion_before", 0))
        if not number and not registered.get(before):
            reason = ", or it was removed" if before else ""
            raise InputError(f"no version served before version {champion.number}{reason}: nothing to roll back to")
        target = _get_version(registered, number or before)
        if "promoted_at" not in target.tags and target.number != before:
            held = "was held back and " if target.tags.get("gate") == "held" else ""
            raise InputError(f"version {target.number} {held}never served: see `surf2vec promote --override`")
        _check_complete(root, target)
        at, uri = _now(), registry_uri(root, publish)
        for left in registered.versions:
            if left == champion or (left.has_served and left.number > target.number):
                # A rerun of its night must not promote it.
                move_aliases(uri, left, {"rolled_back_at": at}, [])
        back = {"promoted_at": at, "rolled_back_from": str(champion.number), "rolled_back_at": None}
        move_aliases(uri, target, back, [CHAMPION])
        message = f"version {target.number} (release {target.release}) serves again instead of {champion.number}"
        log(on_event, message)
    return _describe(target, champion.number, message, started)


def pin_release(root: Root, release: str) -> None:
    """Pin the generation that a release was exported from, under the release's name, if the store still has it."""
    if (root.store / "pinned" / f"{release}.json").exists():
        return
    manifest = read_json(root.export(release) / EXPORT_MANIFEST)
    exported = (manifest["generation"], manifest["created_from"]["window_id"])
    with lock_store(root.store):
        current = open_generation(root.store).manifest
        if (current["generation"], current["window_id"]) == exported:
            pin_generation(root.store, release)


def release_pins(root: Root, publish: PublishConfig) -> None:
    """Unpin the generations of this root's releases, except those that a promotion or a rollback needs, and the newest
    `publish.keep_releases`. Generations of releases that this registry does not have stay pinned until gc."""
    from surf2vec.tasks.registry.ownership import Ownership  # imports MLflow

    with lock_aliases(root), lock_store(root.store):
        registered = read_registry(root, publish)
        owner = Ownership(root, publish)
        ours = [one for one in registered.versions if owner.owns_version(one)]
        numbers = {one.number for one in ours[-publish.keep_releases :]}
        needed = {one.release for one in registered.versions if one.number in numbers | registered.needed}
        unneeded = {one.release for one in ours} - needed
        pinned = {path.stem for path in (root.store / "pinned").glob("*.json")}
        unpin_generations(root.store, keep=pinned - unneeded - {"best"})
        remove_unreferenced(root.store)


def _get_version(registered: Registered, number: int) -> Version:
    """Return the version with this number. Raises InputError, which lists the newest versions, if there is none."""
    if found := registered.get(number):
        return found
    newest = ", ".join(str(one.number) for one in registered.versions[-10:]) or "none"
    raise InputError(f"there is no version {number} in this registry; the newest are: {newest}")


def _check_complete(root: Root, version: Version) -> None:
    """Raise DamageError unless the version's export and generation are complete, InputError if another root is to keep them."""
    if version.tags.get(ROOT_TAG) not in (None, read_root_id(root)):
        raise InputError(f"version {version.number} is of another root than {root.path}: give this command there")
    release = version.tags.get("release", "")
    place = root.export(release) / EXPORT_MANIFEST
    problem = f"version {version.number} cannot serve: "
    if not release or not place.exists() or digest_file(place) != version.tags.get("manifest_sha256"):
        raise DamageError(f"{problem}its export {place.parent} is gone or not the one that was registered")
    if not (root.store / "pinned" / f"{release}.json").exists():
        raise DamageError(f"{problem}its generation is no longer in {root.store}; choose a newer one")
    for name, entry in open_pinned(root.store, release).files().items():
        verify_size(root.store / name, entry)


def _promotion_tags(registered: Registered, version: Version) -> dict[str, str | None]:
    """Return the tags of a version that is promoted. A rollback goes to what served last, even if its alias was removed."""
    tags: dict[str, str | None] = {"promoted_at": _now()}
    last = registered.last_served
    if last and last.number == version.number and "rolled_back_from" not in version.tags:
        return tags  # a person removed its alias: the rollback target stays
    return tags | {"champion_before": str(last.number) if last and last.number != version.number else None}


def _describe(version: Version, before: int | None, message: str, started: float) -> dict[str, Any]:
    return {
        "model_name": version.name,
        "model_version": version.number,
        "release": version.tags.get("release"),
        "champion_before": before,
        "changed": version.number != before,
        "message": message,
        "seconds": round(time.monotonic() - started, 3),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
