"""Screening of a corpus on disk, and the teaching of policies."""
