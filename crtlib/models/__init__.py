"""Models: construction, loading, scoring, generation."""
