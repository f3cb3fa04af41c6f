"""The trainer: doc2vec with the user vectors out of core. Runs alone as `python -m surf2vec.trainer`.

It depends on numpy, torch, pyarrow, numba and Triton, and not on Prefect, MLflow or DuckDB.
"""
