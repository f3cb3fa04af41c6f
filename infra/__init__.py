"""What runs around the flows: deployments, alarms, and the servers, natively or in containers."""
