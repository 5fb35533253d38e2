"""Studies: a training of any method, what it reads, and what is measured of its model."""
