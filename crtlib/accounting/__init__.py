"""Privacy accounting: epsilon, noise, guarantees."""
