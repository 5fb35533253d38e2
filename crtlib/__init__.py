"""Confidential language modelling, the library: simulate, screen, account, train and attack.

What a first script needs, each name from the module that has it. The four names that need PyTorch
are imported when they are asked for, the others at once. The application on this library, which
takes messages to a signed certificate, is the package ``confide``.

>>> import crtlib
>>> crtlib.load_corpus("customersim", limit=3).dialogues[0].turns[0].speaker
'SYS'
>>> event = crtlib.SampledGaussian(sampling_probability=0.1, noise_multiplier=2.0, steps=100)
>>> round(crtlib.epsilon(event, delta=1e-5), 1)
2.3
>>> sorted(set(dir(crtlib)) & {"leakage", "protect", "train"})
['leakage', 'protect']
"""

from __future__ import annotations

from typing import Any

from crtlib.accounting.guarantees import account
from crtlib.accounting.guarantees import bayes_at_fixed_delta as confidentiality
from crtlib.accounting.ledger import SampledGaussian, epsilon, noise_multiplier
from crtlib.accounting.secrets import plan as protect
from crtlib.screening.policies import digest as policy_digest
from crtlib.screening.policies import policy_by_name as policy
from crtlib.screening.policy import Policy
from crtlib.screening.policy import register as register_policy
from crtlib.screening.rates import rates
from crtlib.screening.redaction import prepare, redact
from crtlib.text.corpora import load as load_corpus
from crtlib.text.customersim import simulate
from crtlib.text.records import Corpus, Point, Secret, points
from crtlib.version import __version__

__all__ = [
    "Corpus",
    "CrtStudy",
    "Point",
    "Policy",
    "SampledGaussian",
    "Secret",
    "__version__",
    "account",
    "confidentiality",
    "epsilon",
    "exposure",
    "leakage",
    "load_corpus",
    "load_model",
    "noise_multiplier",
    "points",
    "policy",
    "policy_digest",
    "prepare",
    "protect",
    "rates",
    "redact",
    "register_policy",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """A name that needs PyTorch, which takes seconds to import and may not be installed."""
    match name:
        case "CrtStudy":
            from crtlib.experiments.crt import CrtStudy

            return CrtStudy
        case "exposure":
            from crtlib.attacks.exposure import canary_exposure

            return canary_exposure
        case "leakage":
            from crtlib.attacks.leakage import leakage

            return leakage
        case "load_model":
            from crtlib.models.folder import load

            return load
    raise AttributeError(f"module 'crtlib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
