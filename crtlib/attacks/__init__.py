"""Attacks: membership, exposure, the leakage report, audits."""
