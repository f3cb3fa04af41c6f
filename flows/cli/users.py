"""Commands about users: similar, explain, infer, forget."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from surf2vec.flows.cli.options import HOST_MEMORY, Call, NewLogs, User, command, err
from surf2vec.flows.cli.show import show_explained, show_forgotten, show_similar, show_values
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.errors import LeftElsewhereError


def find_name(call: Call, user_id: str) -> str:
    """Returns the name of a user in the root: the id, or its pseudonym."""
    from surf2vec.tasks.ingest.user_key import read_user_key
    from surf2vec.tasks.users.pseudonyms import pseudonym

    key = read_user_key(call.root, call.config.ingest)
    return pseudonym(user_id, key) if key else user_id


@command("surf2vec similar USER_ID -k 10 --root my-root", show_similar)
def similar(
    call: Call,
    user_id: User,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many.")] = 10,
) -> dict[str, Any]:
    """Nearest users, and the items that rank first for this user."""
    from surf2vec.tasks.queries.similar import similar_users
    from surf2vec.tasks.registry.releases import current_release

    name = find_name(call, user_id)
    return similar_users(call.root, call.root.export(current_release(call.root, call.config.publish)), name, k)


@command("surf2vec explain USER_ID --root my-root", show_explained)
def explain(call: Call, user_id: User) -> dict[str, Any]:
    """What is known of one user: events, items, releases with the weights of the last pages, movement. Nothing of it is kept."""
    from surf2vec.tasks.queries.explain import explain_user

    return {"user_id": user_id} | explain_user(call.root, call.config.publish, find_name(call, user_id))


@command("surf2vec infer --logs 'new/*.csv' --out new.parquet --root my-root", show_values, HOST_MEMORY)
def infer(
    call: Call,
    logs: NewLogs,
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write: user_id, vector.")],
) -> dict[str, Any]:
    """Vectors for users that the model has not seen, by the release that serves. The root's events stay as they are."""
    call.check_logs(logs)
    from surf2vec.tasks.night.ray_cluster import open_fan_out
    from surf2vec.tasks.queries.infer import Inference, infer
    from surf2vec.tasks.registry.releases import current_release

    config = call.config
    root = replace(call, path=call.path.resolve()).root if config.resources.ray_address else call.root
    inference = Inference(logs, out, config.ingest, config.train, config.host_bytes)
    with open_fan_out(config.resources, root) as fan_out:
        return infer(root, current_release(root, config.publish), inference, call.on_event, fan_out)


def report_remaining(result: dict[str, Any]) -> int:
    """Print which copies that others registered still have any of the users. Returns the exit code."""
    from surf2vec.tasks.forgetting.forget import describe_elsewhere

    if left := describe_elsewhere(result["elsewhere"]):
        err.print(shown(left))
    return LeftElsewhereError.exit_code if left else 0


@command("surf2vec forget --ids-file ids.txt --root my-root", show_forgotten, HOST_MEMORY, report_remaining)
def forget(
    call: Call,
    ids_file: Annotated[
        Path | None,
        typer.Option(help="One id a line, or .csv, .tsv, .parquet with the logs' column; none: all who ever were."),
    ] = None,
) -> dict[str, Any]:
    """Take users out of every place that can name them, publish a release without them, and prove it. For good."""
    from surf2vec.tasks.forgetting.forget import forget
    from surf2vec.tasks.ingest.user_key import read_user_key
    from surf2vec.tasks.root.run import FORGET, lock_root
    from surf2vec.tasks.users.ids_files import read_ids
    from surf2vec.tasks.users.pseudonyms import pseudonym
    from surf2vec.trainer.store.writer import lock_store

    root, user_ids = call.root, None
    if ids_file is not None:
        user_ids, key = read_ids(ids_file, call.config.ingest.columns), read_user_key(root, call.config.ingest)
        user_ids = sorted(pseudonym(user_id, key) for user_id in user_ids) if key else user_ids
    with lock_root(root, FORGET, call.log), lock_store(root.store) if root.store.exists() else nullcontext():
        return forget(root, user_ids, call.config.publish, call.config.host_bytes, call.on_event)
