"""The application: from messages that hold secrets to a model with a signed certificate.

It is built on the library ``crtlib``. Its functions do what the commands of ``crtlib`` do; each is
imported when it is first used.

>>> import confide
>>> print(*(name for name in dir(confide) if not name.startswith("_")))
Session certify ingest label_import label_sample leakage_report screen train
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from crtlib.version import __version__

_EXPORTED_FUNCTIONS = {
    "ingest": "confide.text.ingest:ingest_sources",
    "label_sample": "confide.labels.drawing:draw_label_tasks",
    "label_import": "confide.labels.imports:import_labels",
    "screen": "confide.reports.screening_page:screen_into_folder",
    "Session": "confide.training.train_on_corpus:Session",
    "train": "confide.training.train_on_corpus:train",
    "certify": "confide.release.certify:write_certificate",
    "leakage_report": "confide.reports.leakage:make_leakage_report",
}
"""Each public function, and where it lives."""

__all__ = ["__version__", *_EXPORTED_FUNCTIONS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTED_FUNCTIONS:
        raise AttributeError(f"module 'confide' has no attribute {name!r}")
    module, _, attribute = _EXPORTED_FUNCTIONS[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
