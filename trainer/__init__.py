"""The trainer: doc2vec with the user vectors out of core. Runs alone as `python -m trainer`.

It knows numpy, torch and pyarrow, and nothing of Prefect, MLflow or DuckDB.
"""
