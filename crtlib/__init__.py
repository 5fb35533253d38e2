"""Confidential language modelling: screen, train, account, attack and report.

The face of the library: what a first script needs, each name from its own module, imported
when it is asked for.

>>> import crtlib
>>> crtlib.load_corpus("customersim", limit=3).dialogues[0].turns[0].speaker
'SYS'
>>> event = crtlib.SampledGaussian(sampling_probability=0.1, noise_multiplier=2.0, steps=100)
>>> round(crtlib.epsilon(event, delta=1e-5), 1)
2.3
>>> sorted(set(dir(crtlib)) & {"train", "protect", "leakage"})
['leakage', 'protect', 'train']
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.3.0"

_FACE = {
    # what is read
    "load_corpus": "crtlib.text.corpora:load",
    "ingest": "crtlib.text.ingest:ingest",
    "label_sample": "crtlib.text.labels:sample",
    "label_import": "crtlib.text.labels:take",
    "simulate": "crtlib.text.customersim:simulate",
    "points": "crtlib.text.records:points",
    "Corpus": "crtlib.text.records:Corpus",
    "Point": "crtlib.text.records:Point",
    "Secret": "crtlib.text.records:Secret",
    # what is hidden
    "policy": "crtlib.screening.policies:policy_by_name",
    "policy_digest": "crtlib.screening.policies:digest",
    "Policy": "crtlib.screening.policy:Policy",
    "register_policy": "crtlib.screening.policy:register",
    "rates": "crtlib.screening.rates:rates",
    "screen": "crtlib.reports.screening:make",
    "redact": "crtlib.screening.redaction:redact",
    "prepare": "crtlib.screening.redaction:prepare",
    # what it costs
    "SampledGaussian": "crtlib.accounting.ledger:SampledGaussian",
    "epsilon": "crtlib.accounting.ledger:epsilon",
    "noise_multiplier": "crtlib.accounting.ledger:noise_multiplier",
    "account": "crtlib.accounting.guarantees:account",
    "confidentiality": "crtlib.accounting.guarantees:bayes_at_fixed_delta",
    "protect": "crtlib.accounting.secrets:plan",
    # what is done, what leaks, what is run
    "train": "crtlib.experiments.own:train",
    "certify": "crtlib.release.certify:write",
    "load_model": "crtlib.models.folder:load",
    "leakage": "crtlib.attacks.leakage:leakage",
    "leakage_report": "crtlib.reports.leakage:make",
    "exposure": "crtlib.attacks.exposure:canary_exposure",
    "CrtStudy": "crtlib.experiments.crt:CrtStudy",
}
"""Each name of the face, and where it lives."""

__all__ = ["__version__", *_FACE]


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module 'crtlib' has no attribute {name!r}")
    module, _, attribute = _FACE[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
