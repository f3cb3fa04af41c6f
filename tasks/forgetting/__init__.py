"""Users removed from every file and every registered copy."""
