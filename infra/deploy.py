"""Brings the deployments, the automations and the alarms to a Prefect server: `python -m infra.deploy --root R --logs GLOB`.

Safe to call again, and so the way to change any of it. The server is that of PREFECT_API_URL; the webhook for alarms is
$SURF2VEC_ALARM_URL, which goes into a block on the server, encrypted, and nowhere else.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from zoneinfo import available_timezones

from trainer.errors import ConfigError, ResourceError, SurfError

CODE = Path(__file__).parents[1]
POOL = "surf2vec"


def deploy(root: Path, logs: str, cron: str, timezone: str) -> None:
    """Make or renew the deployments of infra/prefect.yaml.

    Raises ConfigError for what is no time zone, ResourceError with Prefect's words.
    """
    if timezone not in available_timezones():
        raise ConfigError(f"--timezone {timezone!r} is no time zone: write for instance Europe/Berlin or UTC")
    environment = os.environ | {
        "SURF2VEC_ROOT": str(root.resolve()),
        "SURF2VEC_LOGS": logs,
        "SURF2VEC_CRON": cron,
        "SURF2VEC_TIMEZONE": timezone,
    }
    arguments = ["--no-prompt", "deploy", "--all", "--prefect-file", "infra/prefect.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments],
        env=environment,
        cwd=CODE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ResourceError(
            f"prefect deploy failed; a worker of the pool {POOL}, which makes it, must have been started once:\n"
            f"{done.stdout}{done.stderr}"
        )


def main() -> int:
    """Deploy as asked; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.deploy", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the project root, on the worker's machine")
    parser.add_argument("--logs", required=True, help="glob of the log files there")
    parser.add_argument("--cron", default="30 2 * * *", help="when a night begins (30 2 * * *)")
    parser.add_argument("--timezone", default="UTC", help="the time zone of --cron, e.g. Europe/Berlin (UTC)")
    asked = parser.parse_args()
    try:
        if "PREFECT_API_URL" not in os.environ:
            raise ConfigError(
                "PREFECT_API_URL is not set: read the stack's client.env first (set -a; . FOLDER/client.env)"
            )
        from infra.automations import apply_automations

        deploy(asked.root, asked.logs, asked.cron, asked.timezone)
        names = apply_automations(os.environ.get("SURF2VEC_ALARM_URL"))
    except SurfError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"deployed; automations: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
