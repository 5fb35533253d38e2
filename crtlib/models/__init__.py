"""What is trained, as a value."""
