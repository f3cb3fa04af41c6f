"""How well the vectors rank held-out items, and how a release compares with the champion."""
