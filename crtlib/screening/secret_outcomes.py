"""How a pair of policies fares on one labelled secret: where its value stands, whether a trace of
it is left, and which secret of a person counts."""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from crtlib.screening.deduplication import TextCounts, hash_point_text
from crtlib.screening.policy import Policy
from crtlib.screening.rate_values import ClusterUnit
from crtlib.screening.redaction import (
    UnmaskedPiece,
    merge_spans,
    overlapping_pairs,
    redact,
)
from crtlib.screening.value_lists import (
    MAX_VALUE_CHARACTERS,
    ListedValue,
    ValueFinder,
    find_as_written,
    is_long_enough,
    search_form_of,
)
from crtlib.text.data_points import find_turns, spoken_spans
from crtlib.text.records import Point, Secret

SECRET_TRAITS = ("kind", "length", "position", "script")
"""The traits by which rates are grouped: kind, characters, third of the text, alphabet."""


class NeighbourCase(NamedTuple):
    """The point that holds a secret, the redacted point, and all places of the secret's value."""

    point: Point
    redacted: Point
    places: Sequence[Secret]


def traits_of_secret(text: str, s: Secret) -> tuple[str, str, str]:
    """The :data:`SECRET_TRAITS` of a secret, except for its kind.

    >>> traits_of_secret("I am Ada", Secret("name", 5, 8))
    ('1 to 4', 'last third', 'Latin')
    """
    length, value = s.end - s.start, text[s.start : s.end]
    size = next((f"{a} to {b}" for a, b in ((1, 4), (5, 9), (10, 19)) if length <= b), "20 or more")
    third = ("first", "middle", "last")[min(2, 3 * (s.start + s.end) // (2 * len(text)))]
    letter = next(filter(str.isalpha, value), "")
    script = unicodedata.name(letter, "other").split()[0].capitalize() if letter else "no letter"
    return size, f"{third} third", script


@dataclass(frozen=True, slots=True)
class SecretOutcome:
    """How a pair of policies fared on one labelled secret, and what is known about the secret.

    ``order`` decides which secret of a ``cluster`` is taken. ``trace`` is None where no trace was
    looked for. ``traits`` are those of :data:`SECRET_TRAITS` except for the kind.
    ``is_undisputed``: no reader doubts that it is a secret. ``second_reader``: what the second
    reader found, as given to :meth:`crtlib.screening.rates.RateCounter.add`. ``text_hash`` is the
    hash of its point's text; None where the secret counts as failing without being judged.
    ``masked_hash`` is the hash of that text with the secret masked; None where no trace was looked
    for.
    """

    cluster: str = field(repr=False)
    kind: str = field(repr=False)
    order: bytes = field(repr=False)
    miss: bool
    trace: bool | None
    public: bool
    traits: tuple[str, str, str]
    is_undisputed: bool = True
    second_reader: str | None = None
    text_hash: int | None = field(default=None, repr=False)
    masked_hash: int | None = field(default=None, repr=False)

    def is_repeated(self, texts: TextCounts) -> bool:
        """Whether another point has the text of its point, as it is or with the secret masked."""
        assert self.text_hash is not None and self.masked_hash is not None
        repeats_as_it_is = texts.stands_elsewhere(self.text_hash, here=True)
        return repeats_as_it_is or (
            self.masked_hash != self.text_hash
            and texts.stands_elsewhere(self.masked_hash, here=False)
        )


def secrets_to_trace(
    outcomes: Sequence[SecretOutcome], cases: Sequence[NeighbourCase], characters: int
) -> Sequence[int]:
    """The positions in ``outcomes`` for which a trace is looked for: all, unless the neighbours,
    each as long as its whole point, hold many times the ``characters`` of the points. In that case
    only those that a rate can count: one for each cluster, and one for each cluster and kind."""
    neighbour_characters = sum(len(case.point.text) for case in cases)
    if neighbour_characters <= 16 * characters + 2**20:
        return range(len(outcomes))
    groupings = attrgetter("cluster"), attrgetter("cluster", "kind")
    countable = {
        id(outcome) for group in groupings for outcome in first_per_cluster(outcomes, group)
    }
    return [k for k, outcome in enumerate(outcomes) if id(outcome) in countable]


def find_traces(cases: Sequence[NeighbourCase], policy: Policy) -> Iterator[tuple[bool, int]]:
    """For each secret, whether the redacted point and the redacted neighbour differ, in their text
    or in the turns found in it; and the hash of the neighbour's text. Neighbours are made and
    labelled in batches of limited size, to save memory."""
    totals = itertools.accumulate(len(case.point.text) for case in cases)
    batches = itertools.groupby(zip(cases, totals, strict=True), lambda row: row[1] // 2**24)
    for _, batch in batches:
        pairs = [(case.redacted, redact(case.point, case.places)) for case, _ in batch]
        flags = policy([neighbour for _, neighbour in pairs])
        for (redacted, neighbour), spans in zip(pairs, flags, strict=True):
            other = redact(neighbour, spans)
            is_same = redacted.text == other.text and find_turns(redacted) == find_turns(other)
            yield not is_same, hash_point_text(neighbour)


def find_value_places(point: Point, values: Sequence[str]) -> list[list[Secret]]:
    """The places of each of some values in the own words of a point's turns, in whatever spelling
    :func:`crtlib.screening.value_lists.list_policy` finds. A value too short or too long for that
    is found only as it is written. A match within a longer word or number is not a place; in a
    script without spaces, every match is.

    Guarantee:
        Test: ``tests/screening/test_unspaced_scripts.py``.
    """
    places: list[list[Secret]] = [[] for _ in values]
    findable = [
        k
        for k, value in enumerate(values)
        if is_long_enough(value) and len(search_form_of(value)[0]) <= MAX_VALUE_CHARACTERS
    ]
    find = ValueFinder("labels", [ListedValue(values[k], str(k), k) for k in findable])
    exact = {k: value for k, value in enumerate(values) if k not in findable}
    for start, end in spoken_spans(point):
        turn_text = point.text[start:end]
        for (s,) in find(turn_text)[0] if findable else ():
            places[int(s.kind)].append(Secret("", start + s.start, start + s.end))
        for k, value in exact.items():
            places[k] += [
                Secret("", start + a, start + b) for a, b in find_as_written(value, turn_text)
            ]
    return places


def is_left_in_clear(
    point: Point, places: Sequence[Secret], pieces: Sequence[UnmaskedPiece]
) -> bool:
    """Whether an unmasked piece holds a character, other than white space, from any ``places``."""
    return any(
        point.text[max(s.start, c.start) : min(s.end, c.end)].strip()
        for s, c in overlapping_pairs(merge_spans([places]), pieces)
    )


def cluster_of(point: Point, cluster: ClusterUnit) -> str:
    """The cluster of a point: its user, or its dialogue where no user is known or dialogues were
    drawn. Raises ``ValueError`` for a point with neither, as two points of one dialogue would be
    taken to be independent."""
    name = (point.user if cluster == "user" else "") or point.dialogue_id
    if not name:
        raise ValueError(f"cluster={cluster!r}: a point has no dialogue_id, which is its cluster")
    return name


def draw_order(seed: int, name: str, start: int) -> bytes:
    """The key by which secrets are sorted in order to draw one: a hash of a seed, a point's name,
    and a place in that point."""
    key_text = f"{seed}\x1f{name}\x1f{start}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(key_text, digest_size=16).digest()


def first_per_cluster(
    outcomes: Sequence[SecretOutcome],
    group: Callable[[SecretOutcome], Any] = attrgetter("cluster"),
) -> list[SecretOutcome]:
    """The secret of each cluster that comes first in ``order``, which is as good as random."""
    last_first = sorted(outcomes, key=attrgetter("order"), reverse=True)
    return list({group(outcome): outcome for outcome in last_first}.values())


def comparable_value(point: Point, secret: Secret) -> str:
    """The value of a secret in the form in which values are compared, however it is written."""
    value = point.text[secret.start : secret.end]
    return search_form_of(value)[0] or value
