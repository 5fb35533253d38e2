"""An attack as a value: what it measures on a trained model, and what chance would give.

A file that defines an attack also registers it, which puts it into every table:

>>> def measure(subject):
...     return [("parameters", 0, float(sum(p.numel() for p in subject.model.parameters())))]
>>> size = Attack(
...     name="size", label="Size of the model", statistic="parameters", measure=measure,
...     summary=lambda table: summarise_over_seeds(
...         table, metric="parameters", band=lambda seeds, points: ChanceBand(0, 0, 0, 0.95)
...     ),
... )
>>> register_attack(size) is ATTACKS["size"]
True
>>> del ATTACKS["size"]

:func:`crtlib.attacks.attack_registry.all_attacks` returns all of them, including those of other
packages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd
from torch import nn

from crtlib.intervals import ChanceBand
from crtlib.text import canaries as canaries_text
from crtlib.text.records import Point
from crtlib.text.tokenizer import BpeTokenizer

AttackRow = tuple[str, int, float]
"""(metric, item, value): a row of the long table; ``item`` numbers what is measured one by one."""

CELL_COLUMNS = ["model", "method", "gamma"]
METHODS_WITHOUT_GAMMA = ("dpsgd",)
"""Methods that read the raw text, for which the miss rate of a policy changes nothing."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Subject:
    """What an attacker is given: a trained model, and texts to try on it; its repr shows no text.

    ``points`` are the training points in clear with their labels, ``read`` the same points as the
    method read them, ``others`` points from the same source that no run has read. ``canaries``
    are the planted secrets, ``seed`` is the seed of the run. ``reference`` is an optional model
    with the same tokenizer, which has read neither ``points`` nor ``others``. It should have read
    text of their kind, so that it knows what such secrets look like. ``carrier`` is the text before
    the digits of a canary.
    """

    model: nn.Module
    tokenizer: BpeTokenizer
    points: tuple[Point, ...]
    read: tuple[Point, ...]
    others: tuple[Point, ...]
    canaries: tuple[str, ...] = field(repr=False)
    seed: int
    carrier: str = field(default=canaries_text.canary_prefix(), repr=False)
    reference: nn.Module | None = None


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack: ``measure`` tries one trained model; ``summary`` reads a table of many.

    ``statistic`` is the axis label of the summary's ``mean``, with its unit. A summary has one row
    per (model, method, gamma), or per (metric, model, method, gamma) if there are several metrics:
    ``mean``, ``std`` and the number of ``seeds``, and ``low`` and ``high``, the ends of the chance
    band.
    """

    name: str
    label: str
    statistic: str
    measure: Callable[[Subject], list[AttackRow]]
    summary: Callable[[pd.DataFrame], pd.DataFrame]


ATTACKS: dict[str, Attack] = {}
"""The attacks registered so far, by name."""


def register_attack(attack: Attack) -> Attack:
    """Register ``attack`` and return it. Raises ``ValueError`` if another attack has its name; the
    same file may be imported again."""
    registered = ATTACKS.get(attack.name, attack)
    if _defining_function(registered) != _defining_function(attack):
        raise ValueError(
            f"attack={attack.name!r}: must be a new name, {_defining_function(registered)} has it"
        )
    ATTACKS[attack.name] = attack
    return attack


def _defining_function(attack: Attack) -> str:
    function = attack.measure
    return f"{function.__module__}.{getattr(function, '__qualname__', attack.name)}"


# --------------------------------------------------------------------------- summaries


def summarise_over_seeds(
    table: pd.DataFrame,
    *,
    metric: str,
    band: Callable[[int, int], ChanceBand],
    items: Literal["mean", "max"] = "mean",
) -> pd.DataFrame:
    """Summarise one ``metric`` of a results table, in one row per (model, method, gamma).

    The value of a run is the mean or the maximum over its items (``items``); ``mean`` and ``std``
    are those over the runs. ``band(seeds, points)`` is the band in which chance puts the means of
    ``seeds`` runs, for ``points`` such means at once.
    """
    runs = table[table.metric == metric].groupby([*CELL_COLUMNS, "seed"]).value.agg(items)
    rows = mean_and_std(runs.groupby(CELL_COLUMNS))
    cached_band = functools.cache(band)
    bands = [cached_band(n, len(rows)) for n in rows.seeds.tolist()]
    rows["low"], rows["high"] = [b.low for b in bands], [b.high for b in bands]
    return repeat_at_every_gamma(rows.reset_index())


def mean_and_std(runs: Any) -> pd.DataFrame:
    """The ``mean``, ``std`` and number of ``seeds`` of a value over runs grouped by cell."""
    return runs.agg(["mean", "std", "count"]).rename(columns={"count": "seeds"})


def repeat_at_every_gamma(
    rows: pd.DataFrame, *, sort_columns: Collection[str] = CELL_COLUMNS
) -> pd.DataFrame:
    """Return ``rows`` with the one result of each method in ``METHODS_WITHOUT_GAMMA`` repeated at
    every gamma of the other methods, sorted by ``sort_columns``."""
    fixed = rows.method.isin(METHODS_WITHOUT_GAMMA)
    without_gamma, with_gamma = rows[fixed].drop(columns="gamma"), rows[~fixed]
    gammas = pd.DataFrame({"gamma": sorted(set(with_gamma.gamma)) or [0.0]})
    repeated = without_gamma.merge(gammas, how="cross")
    return pd.concat([with_gamma, repeated]).sort_values(list(sort_columns), ignore_index=True)
