"""The step of a night that pushes what serves to stores."""

from typing import Any

from surf2vec.flows.context import NightContext
from surf2vec.flows.progress import PUSH_FAILED, raise_alarm, report_step
from surf2vec.flows.step import step
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.promotion import find_champion
from surf2vec.tasks.root import records
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.identity import registry_uri
from surf2vec.tasks.root.run import Root, Run
from surf2vec.tasks.stores.places import open_store
from surf2vec.tasks.stores.push import open_release, push
from surf2vec.tasks.users.tombstones import read_tombstones
from surf2vec.trainer.errors import SurfError
from surf2vec.trainer.events import OnEvent


@step("push")
def push_release(night: NightContext, run: Run) -> None:
    """Push what serves to every store of `publish.stores`. Records the step "push".

    It is pushed whatever the gate said of tonight's release, so that a store that was away catches up. One that fails raises an
    alarm and leaves the night as it is.
    """
    publish = night.config.publish
    if not publish.stores:
        return
    with report_step("push") as on_event:
        results = [push_to(night.root, publish, url, on_event) for url in publish.stores]
    run.record_steps(records.PushStep(stores=results, seconds=sum(one.get("seconds", 0.0) for one in results)))


def push_to(root: Root, publish: PublishConfig, url: str, on_event: OnEvent) -> dict[str, Any]:
    """Push what serves to one store. Returns the result, or the store and its error."""
    place = mask_credentials(url)
    try:
        uri, registry = f"models:/{publish.model_name}@champion", registry_uri(root, publish)
        with open_store(url) as store, open_release(root, uri, registry, on_event) as release:
            return push(store, release, False, on_event, read_tombstones(root))
    except SurfError as error:
        on_event("log", {"message": f"the push to {place} failed, the release stays: {error}"})
        raise_alarm(PUSH_FAILED, find_champion(root, publish) or "none", store=place, reason=str(error))
        return {"store": place, "error": str(error)}
