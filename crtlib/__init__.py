"""Confidential language modelling, the library: simulate, screen, account, train and attack.

It has the names that a first script needs, each imported from the module that defines it. The four
names that need PyTorch are imported on first use, the others at once.

>>> import crtlib
>>> crtlib.load_corpus("customersim", limit=3).dialogues[0].turns[0].speaker
'SYS'
>>> event = crtlib.SampledGaussian(sampling_probability=0.1, noise_multiplier=2.0, steps=100)
>>> round(crtlib.epsilon(event, delta=1e-5, neighbouring_relation="add_or_remove"), 1)
2.3
>>> sorted(set(dir(crtlib)) & {"leakage", "protect", "train"})
['leakage', 'protect']
"""

from __future__ import annotations

from typing import Any

from crtlib.accounting.confidentiality import account_training as account
from crtlib.accounting.confidentiality import confidentiality_epsilon as confidentiality
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.privacy_cost import epsilon, noise_multiplier
from crtlib.accounting.secret_protection import plan_protection as protect
from crtlib.screening.policy import Policy
from crtlib.screening.policy_digests import policy_digest
from crtlib.screening.policy_names import policy_by_name as policy
from crtlib.screening.policy_registry import register_policy
from crtlib.screening.preparation import prepare_points as prepare
from crtlib.screening.rates import measure_rates as rates
from crtlib.screening.redaction import redact
from crtlib.text.corpora import load_corpus
from crtlib.text.customersim import simulate_corpus as simulate
from crtlib.text.data_points import make_points as points
from crtlib.text.records import Corpus, Point, Secret
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
    """Import a name that needs PyTorch, which takes seconds to import and may not be installed."""
    match name:
        case "CrtStudy":
            from crtlib.studies.crt_study import CrtStudy

            return CrtStudy
        case "exposure":
            from crtlib.attacks.exposure import canary_exposure

            return canary_exposure
        case "leakage":
            from crtlib.attacks.leakage import measure_leakage as leakage

            return leakage
        case "load_model":
            from crtlib.models.model_folder import load_model

            return load_model
    raise AttributeError(f"module 'crtlib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
