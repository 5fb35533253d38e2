"""A table in, a figure out."""
