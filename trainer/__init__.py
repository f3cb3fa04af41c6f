"""The trainer: doc2vec with the user vectors out of core. Runs alone as `python -m trainer`.

It knows numpy, torch, pyarrow and safetensors, and nothing of Prefect, MLflow or DuckDB.
"""
