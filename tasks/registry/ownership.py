"""What a registry has of this root: nothing else there may be changed or removed.

The tag `surf2vec_root` says by which root a logged model or a version was made. A version made of another version has its tags,
but whoever copied it has it. What has no tag is from before there was one: it is this root's where its MLflow run is that of one
of the root's runs.
"""

from dataclasses import dataclass
from functools import cached_property, partial

from tasks.config import PublishConfig
from tasks.registry.mlflow_connection import connect, gather
from tasks.registry.mlflow_runs import RUN_TAG
from tasks.registry.tracking import Copy, Version
from tasks.root.identity import ROOT_TAG, is_own_registry, read_root_id, registry_uri
from tasks.root.run import Root, read_stories


@dataclass(frozen=True)
class Ownership:
    """Tells what of the registry is the root's; it is read when something has no tag."""

    root: Root
    publish: PublishConfig

    @cached_property
    def uri(self) -> str:
        return registry_uri(self.root, self.publish)

    @cached_property
    def root_id(self) -> str | None:
        return read_root_id(self.root)

    def owns_version(self, version: Version) -> bool:
        if version.is_copied or "manifest_sha256" not in version.tags:
            return False
        if ROOT_TAG in version.tags:
            return version.tags[ROOT_TAG] == self.root_id
        return version.name == self.publish.model_name and version.mlflow_run_id in self._untagged_runs

    def owns_copy(self, copy: Copy) -> bool:
        if self._is_own and not (copy.folder and copy.folder.is_relative_to(self.root.artifacts)):
            return False  # the root is a copy of the one that has these files, or was moved away from them
        if ROOT_TAG in copy.tags:
            return copy.tags[ROOT_TAG] == self.root_id
        return copy.mlflow_run_id in self._untagged_runs

    @cached_property
    def _is_own(self) -> bool:
        return is_own_registry(self.root, self.publish)

    @cached_property
    def _untagged_runs(self) -> set[str]:
        """The MLflow runs without the tag that belong to runs of the root: that of the story, or any in the root's experiment."""
        made: dict[str, str | None] = {}
        for story in read_stories(self.root):
            registered = story.steps.registered or story.gone_steps.registered
            made[story.run_id] = (registered and registered.mlflow_run_id) or None
        ours = set()
        with connect(self.uri) as client:
            names = {one.experiment_id: one.name for one in gather(client.search_experiments)}
            for run in gather(partial(client.search_runs, list(names), f"tags.{RUN_TAG} LIKE '%'")) if names else ():
                recorded = made.get(run.data.tags[RUN_TAG], "")
                is_told = recorded == run.info.run_id
                is_here = recorded is None and names[run.info.experiment_id] == self.publish.experiment
                if ROOT_TAG not in run.data.tags and (is_told or is_here):
                    ours.add(run.info.run_id)
        return ours
