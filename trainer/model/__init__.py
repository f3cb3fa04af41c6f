"""The rows and tables of doc2vec and its objectives. Pure functions."""
