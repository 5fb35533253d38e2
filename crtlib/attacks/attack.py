"""An attack as a value: what it measures on a trained model, and what chance would show.

A file that defines an attack registers it there, and with that it is in every table:

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

:func:`crtlib.attacks.by_name.all_attacks` has them all, those of other packages too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from torch import nn

from crtlib.intervals import ChanceBand
from crtlib.text import canaries as canaries_text
from crtlib.text.records import Point
from crtlib.text.tokenizer import BpeTokenizer

AttackRow = tuple[str, int, float]
"""(metric, item, value): a row of the long table; ``item`` counts what is measured one by one."""

CELL_COLUMNS = ["model", "method", "gamma"]
METHODS_WITHOUT_GAMMA = ("dpsgd",)
"""Methods that read the raw text, so that the miss rate of a policy changes nothing for them."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Subject:
    """What an attacker is given: a trained model, and who knows what; its repr says none.

    ``points`` are the training points in clear with their labels, ``read`` the same as the method
    read them, ``others`` points of the same source, of people whom no run has read. ``canaries``
    are the planted secrets, ``seed`` is that of the run. ``reference`` is a model of the same
    tokenizer, where there is one: it has read neither ``points`` nor ``others``, but best text of
    their kind, so that it knows what such secrets look like. ``carrier`` is the text before the
    digits of a canary.
    """

    model: nn.Module
    tokenizer: BpeTokenizer
    points: tuple[Point, ...]
    read: tuple[Point, ...]
    others: tuple[Point, ...]
    canaries: tuple[str, ...]
    seed: int
    carrier: str = canaries_text.canary_prefix()
    reference: nn.Module | None = None


@dataclass(frozen=True, kw_only=True)
class Attack:
    """``measure`` asks one trained model; ``summary`` reads a table of many.

    ``statistic`` is the axis label of the summary's ``mean``, with its unit. A summary has one row
    a (model, method, gamma), or a (metric, model, method, gamma) where there are several metrics:
    ``mean``, ``std`` and the number of ``seeds``, and ``low`` and ``high``, the ends of the band in
    which chance lies.
    """

    name: str
    label: str
    statistic: str
    measure: Callable[[Subject], list[AttackRow]]
    summary: Callable[[pd.DataFrame], pd.DataFrame]


ATTACKS: dict[str, Attack] = {}
"""The attacks that were registered so far, by name."""


def register_attack(attack: Attack) -> Attack:
    """Enter ``attack`` and return it. Raises ``ValueError`` for a name that another one has; the
    same file may be imported again."""
    other = ATTACKS.get(attack.name, attack)
    if _defining_function(other) != _defining_function(attack):
        raise ValueError(
            f"attack={attack.name!r}: must be a new name, {_defining_function(other)} has it"
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
    """The summary of one ``metric`` of a results table, one row a (model, method, gamma).

    The value of a run is the ``items`` "mean" or "max" over the items; ``mean`` and ``std`` are
    those of the runs. ``band(seeds, points)`` is where chance puts the mean of so many runs, all
    of so many such numbers at once.
    """
    runs = table[table.metric == metric].groupby([*CELL_COLUMNS, "seed"]).value.agg(items)
    rows = mean_and_std(runs.groupby(CELL_COLUMNS))
    by_chance = functools.cache(band)
    bands = [by_chance(n, len(rows)) for n in rows.seeds.tolist()]
    rows["low"], rows["high"] = [b.low for b in bands], [b.high for b in bands]
    return repeat_at_every_gamma(rows.reset_index())


def mean_and_std(runs: Any) -> pd.DataFrame:
    """``mean``, ``std`` and number of ``seeds`` of a value of runs that are grouped by cell."""
    return runs.agg(["mean", "std", "count"]).rename(columns={"count": "seeds"})


def repeat_at_every_gamma(
    rows: pd.DataFrame, *, by: Collection[str] = CELL_COLUMNS
) -> pd.DataFrame:
    """``rows`` with the one result of each method ``METHODS_WITHOUT_GAMMA`` repeated at every gamma
    of the others, sorted ``by`` these columns."""
    fixed = rows.method.isin(METHODS_WITHOUT_GAMMA)
    one, rest = rows[fixed].drop(columns="gamma"), rows[~fixed]
    gammas = pd.DataFrame({"gamma": sorted(set(rest.gamma)) or [0.0]})
    return pd.concat([rest, one.merge(gammas, how="cross")]).sort_values(
        list(by), ignore_index=True
    )
