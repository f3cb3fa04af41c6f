"""What in a root's registry belongs to the root."""

from dataclasses import dataclass
from functools import cached_property

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.releases import list_versions, read_registry
from surf2vec.tasks.registry.tracking import Copy, list_copies
from surf2vec.tasks.registry.versions import Registered, Version
from surf2vec.tasks.root.identity import ROOT_TAG, has_registry, is_own_registry, read_root_id, registry_uri
from surf2vec.tasks.root.run import Root


@dataclass(frozen=True)
class Ownership:
    """What a root's registry has, read once, and which of it belongs to the root. Only that may be changed or removed.

    The tag `surf2vec_root` names the root that made a logged model or a version. It does not count on copies of versions.
    """

    root: Root
    publish: PublishConfig

    @cached_property
    def uri(self) -> str:
        return registry_uri(self.root, self.publish)

    @cached_property
    def root_id(self) -> str | None:
        return read_root_id(self.root)

    @cached_property
    def registered(self) -> Registered:
        return read_registry(self.root, self.publish)

    @cached_property
    def versions(self) -> list[Version]:
        """The versions of all models; none if nothing was ever registered."""
        return list_versions(self.uri) if has_registry(self.root, self.publish) else []

    @cached_property
    def copies(self) -> list[Copy]:
        return list_copies(self.uri) if has_registry(self.root, self.publish) else []

    def owns_version(self, version: Version) -> bool:
        return not version.is_copied and self.root_id is not None and version.tags.get(ROOT_TAG) == self.root_id

    def owns_copy(self, copy: Copy) -> bool:
        if self._is_own and not (copy.folder and copy.folder.is_relative_to(self.root.artifacts)):
            return False  # the root is a copy of the one that has these files, or was moved away from them
        return self.root_id is not None and copy.tags.get(ROOT_TAG) == self.root_id

    @cached_property
    def _is_own(self) -> bool:  # of every copy the same, and root.json is read for it
        return is_own_registry(self.root, self.publish)
