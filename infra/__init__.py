"""The infrastructure for the flows: deployments, alarms, and the servers, natively or in containers."""

from pathlib import Path

CODE = Path(__file__).parents[2]
POOL = "surf2vec"
