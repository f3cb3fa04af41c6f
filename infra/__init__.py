"""The infrastructure for the flows: deployments, alarms, and the servers, natively or in containers."""

from pathlib import Path

CODE = Path(__file__).parents[1]
POOL = "surf2vec"
