"""Sweeps by name: what ``crtlib sweep NAME`` runs, and which sections of a profile it reads.

>>> list(SWEEPS)
['crt', 'tuning', 'choices', 'start', 'leakage', 'secrets', 'games']
>>> len(studies("games", "quick", {"trials": "1"}))
6
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crtlib.checks import ParameterError, check_choice
from crtlib.experiments import grids, settings
from crtlib.experiments.study import Study


@dataclass(frozen=True)
class Sweep:
    """Which sections of a profile a sweep reads, and the studies that it makes of them."""

    sections: tuple[str, ...]
    grid: Callable[..., list[Any]]
    shows: str


def _choices(section: Any) -> list[Study]:
    return list(itertools.chain.from_iterable(grids.choices_grid(section).values()))


def _leakage(report: Any, training: Any) -> list[Study]:
    return [run.study for run in grids.leakage_chapters(report, training)]


def _secrets(protection: Any, extraction: Any) -> list[Study]:
    return [*grids.masked_grid(protection), *grids.extraction_grid(extraction)]


SWEEPS: dict[str, Sweep] = {
    "crt": Sweep(("crt",), grids.crt_grid, "Figures 2 to 5 of CRT"),
    "tuning": Sweep(("tuning",), grids.tuning_grid, "the search for their hyperparameters"),
    "choices": Sweep(("utility",), _choices, "what CRT leaves open"),
    "start": Sweep(("utility",), grids.public_start_grid, "GPT-2 from a public start"),
    "leakage": Sweep(
        ("leakage_report", "leakage_training"), _leakage, "Tables 2 to 5 and Figure 5 of the report"
    ),
    "secrets": Sweep(
        ("secret_protection", "extraction"), _secrets, "Figure 1 of Hush! and its extraction"
    ),
    "games": Sweep(("secret_protection",), grids.games_grid, "reconstruction games"),
}


def studies(name: str, profile: str, changes: Mapping[str, str]) -> list[Study]:
    """The studies of a sweep at a profile's sizes. ``changes`` sets fields by dotted names, each in
    every section of the sweep that has it.

    Raises :class:`ParameterError` for a name that no section has, or a value that it refuses.
    """
    check_choice("name", name, tuple(SWEEPS))
    sections = [settings.load(section, profile) for section in SWEEPS[name].sections]
    for dotted, text in changes.items():
        taken, refusals = 0, []
        for k, section in enumerate(sections):
            try:
                sections[k] = settings.assign(section, {dotted: text})
                taken += 1
            except ParameterError as error:
                refusals.append(error)
        if not taken:
            raise refusals[0]
    return grids.unique(SWEEPS[name].grid(*sections))
