"""Sweeps by name: what ``crtbook sweep NAME`` runs, and which sections of a profile it reads.

>>> [*SWEEPS][:5]
['crt', 'tuning', 'authors', 'start', 'carriers']
>>> len(make_studies("games", "quick", {"trials": "1"}))
6
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pandas import DataFrame

from crtbook import grids, settings
from crtbook.study import Store, Study
from crtbook.tables import STUDIES
from crtlib.checks import ParameterError, check_choice

SHOWN = (
    "test_ppl_words", "exposure", "exposure_sampled", "unique", "longest", "valid", "test",
    "success", "memorised", "trace_upper", "public_upper",
)  # fmt: skip
"""The metrics that the command line shows for a sweep."""


SWEEPS: dict[str, list[str]] = STUDIES["sweeps"]
"""For each sweep, its grid (:mod:`crtbook.grids`) and the sections of a profile that it reads."""


def make_studies(name: str, profile: str, changes: Mapping[str, str]) -> list[Study]:
    """The studies of a sweep at a profile's sizes. ``changes`` sets fields by dotted names, in
    every section of the sweep that has the field.

    Raises :class:`ParameterError` for a name that no section has, or a value that it refuses.
    """
    check_choice("name", name, tuple(SWEEPS))
    grid, *names = SWEEPS[name]
    sections = [settings.load_settings(section, profile) for section in names]
    section_changes: list[dict[str, str]] = [
        {} for _ in sections
    ]  # at once: one setting may follow another
    for dotted, text in changes.items():
        path = dotted.split(".")
        # A name that no section has may still be new (shapes.gru); the first that could decides.
        for prefix in (path, path[:1]):
            if owners := [k for k, section in enumerate(sections) if _has_name(section, prefix)]:
                break
        for k in owners or [0]:
            section_changes[k][dotted] = text
    sections = [
        settings.assign_changes(*pair) for pair in zip(sections, section_changes, strict=True)
    ]
    return grids.drop_repeats(getattr(grids, grid)(*sections))


def forecast_runs(studies: Iterable[Study], store: Store) -> DataFrame:
    """What studies need, before the first run: one row for each corpus and model. It has the number
    of ``runs``, how many are ``missing``, estimates of their ``hours`` of one core and of the
    ``memory`` of the largest in GiB, and what is missing here (``lacks``)."""
    rows = []
    for study in studies:
        lacking, cell = study.lacks() or "", [getattr(study, p, "") for p in ("corpus", "model")]
        missing = int(not lacking and not store.has(study.ready().key))
        rows.append([*cell, 1, missing, study.cost() / 3600 * missing, study.memory(), lacking])
    aggregates = {"runs": "sum", "missing": "sum", "hours": "sum", "memory": "max", "lacks": "max"}
    table = DataFrame(rows, columns=["corpus", "model", *aggregates])
    return table.groupby(["corpus", "model"], sort=False).agg(aggregates).reset_index()


def _has_name(section: Any, path: list[str]) -> bool:
    """Whether a section, or a group in it, now has this name."""
    if not path:
        return True
    return (
        isinstance(section, Mapping)
        and path[0] in section
        and _has_name(section[path[0]], path[1:])
    )


def parse_changes(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping.

    >>> parse_changes(["seeds=1", "gammas=[0.05]"])
    {'seeds': '1', 'gammas': '[0.05]'}
    """
    for text in texts:
        if "=" not in text:
            raise ParameterError(f"--set {text}: must be NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def format_overview(table: DataFrame) -> str:
    """The last values of a sweep's table for a terminal: one row for each kind of run and metric,
    with the mean over seeds and the number of seeds."""
    last = table[table.epoch == table.groupby("run").epoch.transform("max")]
    names = "study corpus model method gamma targets learns noise policy conservative carrier"
    groups = [n for n in names.split() if n in last and last[n].notna().any()]
    values = last[last.metric.isin(SHOWN)].groupby([*groups, "metric"], dropna=False).value
    overview = values.agg(["mean", "count"]).unstack("metric")
    return overview.to_string(na_rep="", float_format="{:.4g}".format)
