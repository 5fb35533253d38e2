"""Releases: model folders, certificates, signatures, and a verifier for recipients."""
