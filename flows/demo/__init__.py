"""Three nights on made-up logs: `python -m flows.demo`."""
