"""Studies: one training of any method, its data, and the measurements of its model."""
