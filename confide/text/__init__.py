"""What people send and what people mark in it: exports, labels."""
