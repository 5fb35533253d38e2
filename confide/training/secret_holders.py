"""Find which points of a corpus hold which secrets, by a list of values or by a policy.

>>> import pathlib, tempfile
>>> from crtlib.text.records import Point
>>> file = pathlib.Path(tempfile.mkdtemp()) / "holders.csv"
>>> _ = file.write_text("user,secret\\nann,Ada Lovelace\\nann,555 1234\\nbob,Kurt\\n")
>>> texts = ["I am ada lovelace", "call 555-1234", "hello"]
>>> points = [Point(str(i), "ann", text) for i, text in enumerate(texts)]
>>> found = find_listed_holders([points], file, by="user", prior=0.001, posterior=0.1)
>>> found.secrets, found.matrix().toarray().tolist(), found.unseen
(['ann'], [[1.0, 1.0, 0.0]], 1)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from scipy import sparse

from crtlib.arguments import argument, argument_error
from crtlib.checks import check_allowed, check_choice
from crtlib.files import StrPath
from crtlib.screening import value_lists
from crtlib.screening.policy import Policy
from crtlib.screening.value_lists import (
    ListedValue,
    ValueFinder,
    is_long_enough,
    search_form_of,
)
from crtlib.text.data_points import spoken_spans
from crtlib.text.identity import normalise_unit_name
from crtlib.text.records import Point

PromiseUnit = Literal["value", "user"]
SECRET_COLUMNS = ("user", "secret", "kind", "p", "r")


@dataclass
class SecretHolders:
    """Which examples hold which secrets. ``examples`` are the ids of all points; ``secrets`` are
    the names of whatever gets a promise of its own, a value or a user; ``pairs`` are (secret,
    example) by index. ``prior`` and ``posterior`` have one value per secret. ``unseen`` is the
    number of secrets that are not in the text."""

    secrets: list[str] = field(repr=False)
    examples: list[str] = field(repr=False)
    pairs: list[tuple[int, int]] = field(repr=False)
    prior: list[float] = field(repr=False)
    posterior: list[float] = field(repr=False)
    unseen: int

    def matrix(self) -> sparse.csr_array:
        """``(secrets, examples)`` of 0 and 1."""
        where = np.transpose(self.pairs)
        shape = (len(self.secrets), len(self.examples))
        return sparse.csr_array((np.ones(len(self.pairs)), (where[0], where[1])), shape=shape)


def find_flagged_holders(
    batches: Callable[[], Iterable[Sequence[Point]]],
    policy: Policy,
    *,
    by: PromiseUnit,
    prior: float,
    posterior: float,
) -> SecretHolders:
    """Find who holds the secrets that ``policy`` flags. By value, each value that it flags
    somewhere is a secret. By user, each user is one, held by all points that contain a value
    flagged in that user's text.

    Values that differ only in spelling (as ``list:`` reads them) are one secret, and each is looked
    for in all of the text, so points where the policy passed it over count too. A value that is too
    short to look for is held where it is flagged.

    Args:
        batches: Reads the points, the same each time; they are read twice.
        policy: Flags the secrets.
        by: What gets a promise of its own: a "value" or a "user".
        prior: The probability with which an attacker guesses a secret beforehand, in (0, 1).
        posterior: The probability that the promise allows afterwards, in (``prior``, 1).
    """
    check_choice("by", by, ("value", "user"))
    check_allowed("prior", prior, 0 < prior < 1, "in (0, 1)")
    check_allowed("posterior", posterior, prior < posterior < 1, f"in ({prior:g}, 1)")
    rows: dict[tuple[str, bool], ListedValue] = {}
    users: dict[int, set[str]] = {}
    flagged = list[set[int]]()
    for points in batches():
        for point, spans in zip(points, policy(points), strict=True):
            values = [point.text[s.start : s.end] for s in spans]
            numbers = {
                rows.setdefault(search_form_of(v), ListedValue(v, "", len(rows))).number
                for v in values
            }
            for number in numbers:
                users.setdefault(number, set()).add(point.user)
            flagged.append(numbers)
    find = ValueFinder(
        argument("policy"), [row for row in rows.values() if is_long_enough(row.value)]
    )
    names = {
        row.number: {row.value} if by == "value" else users[row.number] for row in rows.values()
    }
    return _find_holders(batches(), find, names, lambda _: (prior, posterior), flagged=flagged)


def find_listed_holders(
    batches: Iterable[Sequence[Point]],
    file: StrPath,
    *,
    by: PromiseUnit,
    prior: float,
    posterior: float | None,
) -> SecretHolders:
    """Find who holds the values in a table, matched as by ``list:``.

    Args:
        batches: The points.
        file: CSV or Parquet, ``user,secret[,kind][,p][,r]``.
        by: What gets a promise of its own. If it is "user", each user is a secret, held by all
            points that contain one of that user's values, whoever wrote them.
        prior: The probability of a right guess beforehand, in (0, 1), where the table has no ``p``.
        posterior: The probability that the promise allows, where the table has no ``r``.

    Raises:
        ValueError: Without showing a value, for a table of another form and for a secret with two
            promises.
    """
    table = _read_secret_table(Path(file), prior, posterior)
    check_choice("by", by, ("value", "user"))
    names = (
        table.secret.tolist()
        if by == "value"
        else [normalise_unit_name(name) for name in table.user]
    )
    promises: dict[str, tuple[float, float]] = {}
    for row, (name, *promise) in enumerate(zip(names, table.p, table.r, strict=True), 2):
        if promises.setdefault(name, (promise[0], promise[1])) != tuple(promise):
            raise ValueError(f"{file}, row {row}: p or r differs from an earlier row of its {by}")
    find = ValueFinder(
        str(file), [ListedValue(value, "", row) for row, value in enumerate(table.secret, 2)]
    )
    whose = {row: {name} for row, name in enumerate(names, 2)}
    return _find_holders(batches, find, whose, promises.__getitem__, order=list(promises))


def _find_holders(
    batches: Iterable[Sequence[Point]],
    find: ValueFinder,
    names: Mapping[int, set[str]],
    promise: Callable[[str], tuple[float, float]],
    *,
    order: Sequence[str] = (),
    flagged: Sequence[set[int]] = (),
) -> SecretHolders:
    """Find which points hold which secrets.

    Args:
        batches: The points.
        find: Finds the values in a text.
        names: The secrets of each value, by the number of the value.
        promise: The prior and the posterior of a secret.
        order: The secrets, in order; else they are in the order in which they are found.
        flagged: For each point the numbers of the values that a policy flagged there, which it
            holds too.

    Raises:
        ValueError: If no point holds a secret.
    """
    points = itertools.chain.from_iterable(batches)
    pairs: list[tuple[str, int]] = []
    examples: list[str] = []
    for index, point in enumerate(points):
        flagged_here = flagged[index] if flagged else set()
        messages = [point.text[start:end] for start, end in spoken_spans(point)]
        held = flagged_here.union(*(find(message)[1] for message in messages))
        held_names = sorted(set().union(*(names[number] for number in held)))
        pairs += [(name, index) for name in held_names]
        examples.append(point.id)
    if not pairs:
        raise ValueError("secrets=0: none of them appears in the text; there is nothing to protect")
    seen = dict.fromkeys(name for name, _ in pairs)
    every = order or list(seen)
    secrets = [name for name in every if name in seen]
    position = {name: k for k, name in enumerate(secrets)}
    prior, posterior = map(list, zip(*map(promise, secrets), strict=True))
    placed = [(position[name], index) for name, index in pairs]
    return SecretHolders(secrets, examples, placed, prior, posterior, len(every) - len(secrets))


def _read_secret_table(path: Path, prior: float, posterior: float | None) -> pd.DataFrame:
    """The table of :func:`find_listed_holders`, with its columns ``p`` and ``r`` filled in. Raises
    ``ValueError`` for a table of another form."""
    table = value_lists.read_value_table(path, f"{argument('table')}: {path}")
    names = [str(name) for name in table.columns]
    if not {"user", "secret"} <= set(names) or set(names) - set(SECRET_COLUMNS):
        lacks = [name for name in ("user", "secret") if name not in names]
        more = len(set(names) - set(SECRET_COLUMNS))  # not shown: they may be values
        what = f"has no column {' and '.join(lacks)}" if lacks else f"has {more} other columns"
        raise argument_error("table", f"{what}; a table needs user,secret[,kind][,p][,r]")
    for name, given in (("p", prior), ("r", posterior)):
        if name not in names and given is None:
            raise argument_error("posterior", "must be given, there is no column r")
        column = table[name] if name in names else [given] * len(table)
        table[name] = pd.to_numeric(column, errors="coerce")
    for name in ("user", "secret"):
        empty = np.flatnonzero(table[name].str.strip() == "")
        if len(empty):
            raise ValueError(f"{path.name}, row {table.index[empty[0]]}, column {name}: is empty")
    wrong = np.flatnonzero(~((table.p > 0) & (table.p < table.r) & (table.r < 1)))
    if len(wrong):
        raise ValueError(f"{path.name}, row {table.index[wrong[0]]}: must have 0 < p < r < 1")
    return table
