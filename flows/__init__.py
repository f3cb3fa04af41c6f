"""The flows of a night, and the command line that calls them."""

import os

# Prefect reads its settings when it is imported, so they are set before: nothing is sent outside, and a temporary server
# on a busy machine gets the time it needs. What the user has set stays.
for name, value in {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}.items():
    os.environ.setdefault(name, value)
