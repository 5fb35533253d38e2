"""The kinds of promises, as certificates, records and pages name them."""

from __future__ import annotations

from typing import Literal

PromiseKind = Literal["none", "dp", "bayesian_confidentiality", "secret_protection"]
BAYESIAN_KIND: Literal["bayesian_confidentiality"] = "bayesian_confidentiality"
"""A promise for a secret drawn at random."""
SECRET_PLAN_KIND: Literal["secret_protection"] = "secret_protection"
"""A promise of a plan, for each value that it protects."""
