"""Lists the nights of a root and writes their page: the records have the figures, the registry the current aliases."""

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.report.nights import Night, list_nights, write_nights_report
from surf2vec.tasks.root.run import Root


def write_nights_page(root: Root, publish: PublishConfig) -> list[Night]:
    """Write `root.nights_page` and return the nights on it, as `list_nights` does. Raises ResourceError if MLflow is away."""
    aliases = {number: alias for alias, number in read_registry(root, publish).aliases.items()}
    nights = list_nights(root, aliases)
    write_nights_report(nights, root.nights_page)
    return nights
