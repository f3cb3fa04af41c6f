"""What a flow tells the Prefect server that a person should hear; `infra/automations.py` makes alarms of it.

Without such a server (a run from the command line) nobody listens: there the exit code speaks.
"""

from prefect.events import emit_event

GATE_HELD = "surf2vec.gate.held"
CHAMPION_OLD = "surf2vec.champion.old"


def tell_gate_held(release: str, held_by: list[str]) -> None:
    """Say that the gate kept a release back; `held_by` names the rules."""
    _tell(GATE_HELD, release=release, held_by=", ".join(held_by))


def tell_champion_old(release: str, age_days: float) -> None:
    """Say that the release that serves is older than it may be."""
    _tell(CHAMPION_OLD, release=release, age_days=f"{age_days:.1f}")


def _tell(event: str, release: str, **facts: str) -> None:
    resource = {"prefect.resource.id": f"surf2vec.release.{release}"}
    emit_event(event, resource, payload={"release": release} | facts)
