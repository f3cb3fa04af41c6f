"""The infrastructure for the flows: deployments, alarms, and the servers, natively or in containers."""

from pathlib import Path

CODE = Path(__file__).parents[2]
POOL = "surf2vec"
PATIENCE_SECONDS = 300.0
"""How long a run may be Pending. Less than `grace_period_seconds` of infra/prefect.yaml, after which its slot is taken from it:
a run that ends without its slot would free that of another."""
