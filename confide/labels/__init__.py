"""Labels: drawing turns to be read, what readers marked, settling their differences."""
