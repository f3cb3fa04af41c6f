"""To and from word2vec files."""
