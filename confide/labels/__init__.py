"""Labels: turns drawn to be read, what people marked in them, and who decides where they differ."""
