"""From events to a corpus of tokens."""
