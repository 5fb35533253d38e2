"""Training on a corpus: from a recipe to a released model and its record."""
