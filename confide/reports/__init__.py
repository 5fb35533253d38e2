"""Reports and certificate pages."""
