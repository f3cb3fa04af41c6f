"""The Prefect flows, the command line, and the demo."""

import os

# Prefect reads its settings at import, so they are set here: no telemetry, and enough time for a temporary server on a
# busy machine. Settings of the user stay.
for name, value in {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}.items():
    os.environ.setdefault(name, value)
