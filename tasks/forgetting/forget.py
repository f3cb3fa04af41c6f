"""`surf2vec forget`: removes users from every place that can name them, for good.

1. Tombstones: from now on ingest, infer and pull leave these users out, even if a later step fails.
2. Events: files with events of these users are rewritten without them.
3. If the champion's release has any of them, it is published again without them: export, corpus and generation lose their
   rows. Nothing is trained; all other vectors keep the same bits. The alias moves.
4. Everything that still has them is removed: older releases (version, copy, export, generation), corpora, leftovers.
5. The proof: every place is searched again.

Meanwhile `forgetting.json` keeps other writers out. If it is killed, the next call finishes, also one for other users: each
step searches for the users to find its remaining work, and does not rely on notes.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.export.without_users import erase_from_export
from surf2vec.tasks.forgetting.copies import Copies, remove_releases, search_everywhere
from surf2vec.tasks.forgetting.erase import erase_events, erase_state, find_rows
from surf2vec.tasks.registry.publish import attach_report, publish_release
from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.versions import Version
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.report.report import write_report
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.identity import list_earlier
from surf2vec.tasks.root.records import RegisterStep, ReportStep, RunRecord, Step
from surf2vec.tasks.root.run import FORGET, Root, Run, current_generation, lock_root, refuse_training
from surf2vec.tasks.upkeep.gc import find_temporaries
from surf2vec.tasks.users.tombstones import Tombstones, add_tombstones, read_tombstones
from surf2vec.tasks.users.user_set import UserSet, want_forgotten, want_users
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.store.generation import read_manifest
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import remove_unreferenced
from surf2vec.trainer.system.files import digest_json, read_json, remove_folder, sync_folders, sync_path, write_json

REMAINS = (
    "items and their vectors keep a faint influence of these users until the next full training",
    "how often an item was seen still counts them until the next corpus is built from the events",
    "the log files themselves, earlier pulls, backups of the root and what was written outside of it are not touched",
)


def forget(
    root: Root,
    user_ids: list[str] | None,
    publish: PublishConfig,
    memory_bytes: int,
    on_event: OnEvent = ignore_event,
    on_missing: Callable[[list[str]], None] = lambda user_ids: None,
) -> dict[str, Any]:
    """Forget users (ids as the root stores them; None: all who were ever forgotten). Returns a summary and the proof.

    on_missing: gets the ids that nobody had, now or in an earlier call, if there are any; it must not log them.
    The caller holds the locks of the root and of its store.
    Raises ConfigError while a training is under way, InputError if no user would be left, ResourceError if the registry is away
    or disk or memory are too small, DamageError if a file does not match its manifest. The same call then continues.
    """
    started = time.monotonic()
    refuse_training(root, "forget")
    known = read_tombstones(root)
    wanted = _find_wanted(root, known, user_ids)
    copies = Copies(root, publish, wanted)
    _check_others(copies)
    tune = Root(root.path / "tune")  # `tune` must not read a corpus that is being removed
    lock = lock_root(tune, FORGET, lambda line: log(on_event, line))
    with lock if tune.path.exists() else nullcontext():
        write_json(root.forgetting, {"since": datetime.now(UTC).isoformat(timespec="seconds")})
        num_new = add_tombstones(root, user_ids or [])
        num_events = erase_events(root, wanted, on_event)
        published = _publish_without(copies, memory_bytes, on_event)
        removed = [*remove_releases(Copies(root, publish, wanted), on_event), *_remove_rest(root, wanted)]
        sync_folders(root.path)  # removals survive a power loss: only then the proof holds
        places, others = search_everywhere(Copies(root, publish, wanted))
        if left := ", ".join(f"{place['found']:,} in {place['place']}" for place in places if place["found"]):
            raise DamageError(f"users who were to be forgotten are still there: {left}; run the same command again")
        root.forgetting.unlink()
        sync_path(root.path)
    if missing := [one for one in user_ids or [] if one not in wanted.seen and known.day_of(one) is None]:
        on_missing(missing)
    num_users = len(read_tombstones(root).days) if user_ids is None else len(user_ids)
    counts = {"users": num_users, "users_new": num_new, "users_found": num_users - len(missing)}
    return counts | {
        "users_not_found": len(missing),
        "events": num_events,
        **published,
        "removed": removed,
        "places": places,
        "found": 0,  # else the proof has failed
        "elsewhere": [place for place in others if place["found"]],
        "remains": _list_remains(root, publish, others),
        "seconds": round(time.monotonic() - started, 3),
    }


def _find_wanted(root: Root, known: Tombstones, user_ids: list[str] | None) -> UserSet:
    """Return the users to forget; those of a call that was interrupted, too."""
    if user_ids is None:
        return want_forgotten(known)
    wanted = want_users(user_ids)
    return wanted.join(want_forgotten(known)) if root.forgetting.exists() else wanted


def _list_remains(root: Root, publish: PublishConfig, others: list[dict[str, Any]]) -> list[str]:
    """Return what still has something of the users, or could not be searched."""
    stores = [
        f"{mask_credentials(url)} has them until the next push, and what it keeps of removed rows until it removes that"
        for url in publish.stores
    ]
    unsearched = [f"{one['place']} is not ours and could not be searched" for one in others if not one["is_here"]]
    earlier = [f"{uri}, where this root published before, was not searched" for uri in list_earlier(root, publish)]
    return [*REMAINS, *unsearched, *stores, *earlier]


def describe_elsewhere(elsewhere: list[dict[str, Any]]) -> str | None:
    """Return a message about the copies that stay and have any of the users; None if there are none."""
    if not elsewhere:
        return None
    copies = [
        f"{place['place']} (not ours, still has {place['found']:,} of these users"
        f"{', used by ' if place['used_by'] else ''}{', '.join(place['used_by'])})"
        for place in elsewhere
    ]
    return (
        f"these users are gone from this root and from all that it registered, but not from {'; '.join(copies)}: nothing was "
        "removed there. Forget them in the roots that made these copies, or delete these versions, then run the same "
        "command again"
    )


def _check_others(copies: Copies) -> None:
    """Raise InputError if the champion's release would have no user left."""
    release = copies.champion.tags.get("release", "") if copies.champion else ""
    folder = copies.root.export(release)
    found = copies.found_in.get(folder, 0)
    if found and found == read_json(folder / EXPORT_MANIFEST)["num_users"]:
        raise InputError(
            f"these are all {found:,} users of release {release}: to forget all users, remove {copies.root.path} and its registry"
        )


def _publish_without(copies: Copies, memory_bytes: int, on_event: OnEvent) -> dict[str, Any]:
    """Erase the users from the store, and publish the champion's release without them if it has any."""
    root, champion = copies.root, copies.champion
    folder = root.export(champion.tags.get("release", "")) if champion else root.path
    if champion and folder not in copies.found_in:
        digest = champion.tags.get("manifest_sha256")
        same = [one for one in copies.copies if one.tags["manifest_sha256"] == digest and copies.owns_copy(one)]
        if any(found for _, found, _ in copies.search(same)):  # the root lacks its export, the registry has it
            pull(f"models:/{champion.name}/{champion.number}", folder, copies.uri)
            copies = Copies(root, copies.publish, copies.wanted)
    if champion is None or not copies.found_in.get(folder):
        erase_state(root, copies.wanted)
        made = Run(root, folder.name).record()
        if champion and made.forgotten_from and not made.steps.report:  # by an earlier call, which was killed
            _register(root, copies.publish, champion, made.forgotten_from, folder.name, on_event)
        return {"release": None, "model_version": champion.number if champion else None}
    before = read_json(folder / EXPORT_MANIFEST)
    known = [digest.hex() for digest in sorted(read_tombstones(root).days)]
    release = digest_json({"release": before["release"], "forgotten": known})[:12]
    erased = erase_state(root, copies.wanted, before, release)
    if not (root.export(release) / EXPORT_MANIFEST).exists():
        values: dict[str, Any] = {"release": release}
        created_from = before["created_from"] | {"run_id": release}
        if erased:
            values["generation"], created_from["window_id"] = erased["generation"], erased["window_id"]
        values["created_from"] = created_from
        erase_from_export(folder, copies.wanted, memory_bytes, values, root.export(release))
    log(on_event, f"release {release} is {before['release']} without the users who are forgotten")
    registered = _register(root, copies.publish, champion, before["release"], release, on_event)
    return {"release": release, "model_version": registered.model_version}


def _register(
    root: Root, publish: PublishConfig, champion: Version, before: str, release: str, on_event: OnEvent
) -> RegisterStep:
    """Register the release with a record derived from its origin's. It serves at once, as these vectors did."""
    run = Run(root, release)
    if not run.record_path.exists():
        run.amend(lambda _: _derive_record(root, publish, before, release))
    registered = publish_release(root, publish, run.record(), root.export(release), on_event, champion)
    step = registered.model_copy(update={"alias": "champion", "digest": release})
    run.record_steps(step)
    report_path = run.folder / "report.html"
    record = run.record()
    write_report(record.replace(steps=record.steps.replace(step)), root.export(release), report_path)
    attach_report(root, publish, step, report_path)
    run.record_steps(ReportStep(report=str(report_path), digest=release))
    return registered


def _derive_record(root: Root, publish: PublishConfig, before: str, release: str) -> RunRecord:
    """Return the record of release `release`, which was made from release `before`."""
    manifest, old = read_json(root.export(release) / EXPORT_MANIFEST), Run(root, before).record()
    num_bytes = sum(about["bytes"] for about in list_files(manifest).values())
    export = {"release": release, "export_dir": str(root.export(release)), "num_users": manifest["num_users"]}
    made: list[Step] = [old.steps.export.model_copy(update=export | {"bytes": num_bytes})]
    if old.steps.gate:
        made.append(old.steps.gate.model_copy(update={"champion": before}))  # the release that it replaces
    return old.replace(
        run_id=release,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command="surf2vec forget",
        window_id=manifest["created_from"]["window_id"],
        forgotten_from=before,
        config=old.config or {"publish": publish.model_dump(mode="json")},
        steps=old.steps.without(RegisterStep, ReportStep).replace(*made),
    )


def _remove_rest(root: Root, wanted: UserSet) -> list[str]:
    """Remove generations and corpora that still have the users, and leftovers of killed processes. Returns what was removed."""
    removed = []
    to_remove = [folder for folder in root.corpora() if find_rows(open_corpus(folder), wanted)]
    for path in root.pinned():
        corpus = root.corpus(read_manifest(path)["window_id"])
        if corpus in to_remove or not corpus.exists():  # without it the rows have no names and are of no use
            path.unlink()
            removed.append(str(path))
    if current_generation(root):
        remove_unreferenced(root.store)
    for folder in to_remove:
        remove_folder(folder)
        removed.append(str(folder))
    for waste in list(find_temporaries(root)):
        waste.remove()
        removed.append(waste.place)
    return removed
