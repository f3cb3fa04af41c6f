"""Made-up logs."""
