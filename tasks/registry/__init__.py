"""Into MLflow and out of it: the only folder that imports mlflow."""
