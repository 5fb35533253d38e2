"""Screening: policies, redaction, failure rates."""
