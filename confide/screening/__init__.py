"""Screen a corpus on disk, and teach policies."""
