"""The application: from messages that hold secrets to a model with a signed certificate.

It stands on the library ``crtlib``. Its functions do what the commands of ``crtlib`` do; each is
imported when it is asked for.

>>> import confide
>>> [name for name in dir(confide) if not name.startswith("_")]
['certify', 'ingest', 'label_import', 'label_sample', 'leakage_report', 'screen', 'train']
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from crtlib.version import __version__

_FACE = {
    "ingest": "confide.text.ingest:ingest",
    "label_sample": "confide.text.labels:sample",
    "label_import": "confide.text.labels:take",
    "screen": "confide.reports.screening:make",
    "train": "confide.experiments.own:train",
    "certify": "confide.release.certify:write",
    "leakage_report": "confide.reports.leakage:make",
}
"""Each public function, and where it lives."""

__all__ = ["__version__", *_FACE]


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module 'confide' has no attribute {name!r}")
    module, _, attribute = _FACE[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
