"""The three rates that a guarantee of CRT stands on, counted on labels, with bounds.

Let a labelled secret stand in the data point ``x``, and let ``x'`` be the point with the secret
replaced by ``<MASK>``, wherever its value stands there. The policies label both anew.

- **miss**: a character of the secret that is no white space is in no span of ``pi``, at one of the
  places of its value. For people.
- **trace**: ``x`` as redacted differs from ``x'`` as redacted; or, where points are deduplicated,
  ``x`` or ``x'`` is the text of another point too. Its probability is gamma of Theorem 8.3: where
  it does not happen training reads the same in both worlds. What is missed leaves a trace, and
  what is found can leave one (half of a name, a neighbour that is flagged no more, a space between
  two masks; or a message that stands twice, of which the second is left out or masked until the
  first one changes): recall never enters a guarantee.
- **public**: neither policy says anything of ``x``, and it trains without noise with the secret in
  it. Its probability is delta2.

The probability is over *a secret met by drawing a user, then one of his secrets*: one is taken of
each labelled user, so the outcomes are independent however alike one user's secrets are, and the
bound of Clopper and Pearson is exact. Where one turn of each user was read, it is *a secret met by
drawing a user, then one of his turns, until it holds one*: who seldom says a secret counts less.

Readers overlook secrets, and mark what is none. Where a second one read again, blind, each turn
with a mark and a random share of all, :func:`rate_upper_bound` counts what the first overlooked
(docs/decisions/8-two-readers.md); otherwise his marks are taken for complete.

>>> from crtlib.screening.regex_policies import oracle_policy, none_policy
>>> from crtlib.screening.policy import Policy
>>> def message(i, text):
...     return Point(str(i), f"user {i}", text, (Secret("name", 5, 8),))
>>> points = [message(i, f"I am Ada, for the {i}th time") for i in range(200)]
>>> found = measure_rates(points, oracle_policy, none_policy)
>>> found.miss.failures, found.trace.failures, found.public.judged_secrets
(0, 0, 200)
>>> round(found.trace.upper_bound, 4)
0.0183
>>> half = Policy("half", lambda points: [(Secret("x", 5, 7),) for p in points])
>>> measure_rates(points, half, none_policy).trace.failures
200

All is found, and each message stands twice:

>>> twice = [message(i, "I am Ada") for i in range(200)]
>>> measure_rates(twice, oracle_policy, none_policy).trace.failures
200
>>> measure_rates(twice, oracle_policy, none_policy, dedup="none").trace.failures
0
"""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from crtlib.checks import check_allowed, check_choice
from crtlib.intervals import clopper_pearson_upper, count_of, exchangeable_rate
from crtlib.screening.deduplication import TextCounts, hash_point_text
from crtlib.screening.policy import FlagFunction, Policy, as_policy, spoken_spans
from crtlib.screening.preparation import DedupScope
from crtlib.screening.redaction import (
    FlaggedSpans,
    Spans,
    UnmaskedPiece,
    merge_spans,
    overlapping_pairs,
    redact,
    unmasked_pieces,
)
from crtlib.screening.secret_shares import ShareOfSecrets, bound_share_of_secrets
from crtlib.screening.value_lists import (
    MAX_VALUE_CHARACTERS,
    MIN_VALUE_CHARACTERS,
    ListedValue,
    ValueFinder,
    compile_value_pattern,
    search_form_of,
)
from crtlib.text import customersim, identity, multiwoz, records
from crtlib.text.canaries import CANARY_USER_PREFIX
from crtlib.text.data_points import find_turns
from crtlib.text.records import MASK, Point, Secret

RATE_NAMES = ("miss", "trace", "public")
RATES_ALPHA = 0.05
"""The bounds of trace and public hold together with a probability of at least 1 - ALPHA."""

SHOWN_KINDS = frozenset(
    {
        *customersim.CUSTOMERSIM_KINDS,
        *multiwoz.KINDS_BY_SLOT.values(),
        *records.LABEL_KINDS,
        "number",
        "date",
    }
)
"""Kinds of secrets that are shown by their names."""

RateOrigin = Literal["one_per_cluster", "exchangeable", "assumed", "policy", "unknown"]
ClusterUnit = Literal["user", "dialogue"]

TOO_FEW_LABELS = 0.25
"""A bound of a group so far above the share that was seen is for want of labels alone, and says
nothing of the policy."""

SECRET_TRAITS = ("kind", "length", "position", "script")
"""By what a detector's rates are told apart: kind, characters, third of the text, alphabet."""


class NeighbourCase(NamedTuple):
    """A secret's point, the point as redacted, and all places of the secret's value in it."""

    point: Point
    redacted: Point
    places: Sequence[Secret]


def _traits_of_secret(text: str, s: Secret) -> tuple[str, str, str]:
    """
    >>> _traits_of_secret("I am Ada", Secret("name", 5, 8))
    ('1 to 4', 'last third', 'Latin')
    """
    length, value = s.end - s.start, text[s.start : s.end]
    size = next((f"{a} to {b}" for a, b in ((1, 4), (5, 9), (10, 19)) if length <= b), "20 or more")
    third = ("first", "middle", "last")[min(2, 3 * (s.start + s.end) // (2 * len(text)))]
    letter = next(filter(str.isalpha, value), "")
    script = unicodedata.name(letter, "other").split()[0].capitalize() if letter else "no letter"
    return size, f"{third} third", script


@dataclass(frozen=True)
class Rate:
    """Of ``judged_secrets``, one of each cluster, ``failures`` fail; ``upper_bound`` is that of
    their rate.

    ``origin`` says where the bound is from: counted on labels (``one_per_cluster``;
    ``exchangeable``: a bound of the mean over their draw), ``assumed``, certain from the
    ``policy``, or ``unknown``. ``labelled_counts``: of all labelled secrets, how many fail, and
    how many they are; they have no bound. ``reread_counts``, where turns were read twice: of the
    turns drawn at random in which the second reader found a secret, in how many the first had
    marked nothing and the secret fails, and how many they are. ``all_secrets``, where messages
    were drawn that hold several: the share of all secrets in messages so drawn, with a bound.
    """

    failures: int
    judged_secrets: int
    upper_bound: float
    origin: RateOrigin
    labelled_counts: tuple[int, int] | None = None
    reread_counts: tuple[int, int] | None = None
    all_secrets: ShareOfSecrets | None = None

    @property
    def rate(self) -> float | None:
        """The share that was seen; None where nothing was."""
        return self.failures / self.judged_secrets if self.judged_secrets else None

    @property
    def has_too_few_labels(self) -> bool:
        """Whether the bound is there for want of labels alone (:data:`TOO_FEW_LABELS`)."""
        if self.origin != "one_per_cluster" or self.rate is None:
            return False
        return self.upper_bound - self.rate > TOO_FEW_LABELS

    def in_a_group(self) -> str:
        """As a table shows the rate of one kind of secret: with why, where its bound says little of
        the policy."""
        return f"{self}, for want of labels" if self.has_too_few_labels else str(self)

    def to_json(self) -> dict[str, Any]:
        """As the key ``rates.miss`` of ``summary.json`` and of a certificate."""
        values: dict[str, Any] = {
            "count": self.failures,
            "of": self.judged_secrets,
            "rate": self.rate,
            "upper": self.upper_bound,
            "how": self.origin,
        }
        if self.labelled_counts:
            values["all"] = list(self.labelled_counts)
        if self.reread_counts:
            values["again"] = list(self.reread_counts)
        if self.all_secrets:
            values["all_secrets"] = asdict(self.all_secrets)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rate:
        """The rate as :meth:`to_json` wrote it."""
        labelled, reread = (values.get(name) for name in ("all", "again"))
        share = values.get("all_secrets")
        return cls(
            failures=values["count"],
            judged_secrets=values["of"],
            upper_bound=values["upper"],
            origin=values["how"],
            labelled_counts=tuple(labelled) if labelled else None,
            reread_counts=tuple(reread) if reread else None,
            all_secrets=ShareOfSecrets(**share) if share else None,
        )

    def __str__(self) -> str:
        if self.origin == "unknown":
            return "unknown: no label shows a secret"
        most = percent_rounded_up(self.upper_bound)
        if self.rate is None or self.origin == "policy":
            return f"at most {most} ({self.origin})"
        over = " on average" if self.origin == "exchangeable" else ""
        seen = f"{self.failures} of {self.judged_secrets} ({100 * self.rate:.2f} %)"
        return f"{seen}, at most {most}{over}"


def percent_rounded_up(share: float) -> str:
    """A share in per cent, rounded upwards: a bound stays one."""
    hundredths = min(-(-share * 10_000 // 1), 10_000)
    return f"{hundredths / 100:.2f} %"


UNKNOWN_RATE = Rate(0, 0, 1.0, "unknown")


def assumed_rate(rate: float) -> Rate:
    """A rate that nobody measured.

    >>> print(assumed_rate(0.1))
    at most 10.00 % (assumed)
    """
    check_allowed("rate", rate, 0 <= rate <= 1, "in [0, 1]")
    return Rate(0, 0, rate, "assumed")


@dataclass(frozen=True)
class PolicyRates:
    """The three rates; ``by_kind`` has the same by kind of secret, each bound for itself: they do
    not hold together. ``alpha`` is the probability with which one bound may fail.

    ``cluster`` says of what one secret was taken, ``points`` how many labelled points were judged,
    and ``secrets`` how many secrets stand in them. ``left_out`` points are of the ``apart`` people
    of whom the rates do not speak, as a policy learned from them. ``policy_pairs`` have been judged
    by these labels so far, this pair included.
    """

    miss: Rate
    trace: Rate
    public: Rate
    by_kind: Mapping[str, Mapping[str, Rate]] = field(default_factory=dict)
    cluster: ClusterUnit = "user"
    points: int = 0
    secrets: int = 0
    left_out: int = 0
    policy_pairs: int = 1
    apart: int = 0

    @property
    def alpha(self) -> float:
        """The chance that one bound fails: two enter a guarantee, for each pair judged so far."""
        return RATES_ALPHA / (2 * self.policy_pairs)

    @property
    def gamma(self) -> float:
        """The bound of the trace rate: gamma of Theorem 8.3."""
        return self.trace.upper_bound

    @property
    def delta2(self) -> float:
        """The bound of the public rate: delta2 of Theorem 8.3."""
        return self.public.upper_bound

    def to_json(self) -> dict[str, Any]:
        """``{miss, trace, public}.{count, of, rate, upper, how}`` and ``by_kind``."""
        return map_rates(vars(self), Rate.to_json)

    def labels_json(self) -> dict[str, Any]:
        """What a certificate says of the labels, as far as it is known here."""
        counts = {"cluster": self.cluster, "turns": self.points, "secrets": self.secrets}
        level = {"judged": self.policy_pairs, "alpha": self.alpha, "left_out": self.left_out}
        return counts | level | ({"apart": self.apart} if self.apart else {})

    def table(self) -> str:
        """For a terminal, at most 80 columns."""
        what = {
            "miss": "secrets the search missed",
            "trace": "the redacted point still differs",
            "public": "a secret trained on without noise",
        }
        clusters = count_of(self.trace.judged_secrets, self.cluster, f"{self.cluster}s")
        head = f"one secret a {self.cluster}, {clusters}"
        rows = [f"{head:<42} {'count':>6} {'of':>6} {'rate':>8} {'at most':>9}"]
        for name, text in what.items():
            r: Rate = getattr(self, name)
            rate = "-" if r.rate is None else f"{100 * r.rate:.2f} %"
            most = percent_rounded_up(r.upper_bound)
            counts = f"{r.failures:>6} {r.judged_secrets:>6}"
            rows.append(f"{name:<7} {text:<34} {counts} {rate:>8} {most:>9}")
        return "\n".join(rows)


def map_rates(rates: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The three rates, and those ``by_kind``, with a change to each."""
    kinds = {k: {n: change(r) for n, r in row.items()} for k, row in rates["by_kind"].items()}
    return {name: change(rates[name]) for name in RATE_NAMES} | {"by_kind": kinds}


def rates_from_json(values: Mapping[str, Any], *, policy_pairs: int = 1) -> PolicyRates:
    """The rates as ``PolicyRates.to_json`` wrote them, with the bounds that they have now that the
    labels have judged so many pairs of policies. A share of all secrets is left out where its bound
    would be too low by now: it does not follow from counts.

    >>> rates_from_json(PolicyRates(UNKNOWN_RATE, UNKNOWN_RATE, assumed_rate(0.1)).to_json()).delta2
    0.1
    """

    def rate(row: Mapping[str, Any]) -> Rate:
        recorded = Rate.from_json(row)
        if recorded.origin != "one_per_cluster":
            return replace(recorded, all_secrets=None)
        alpha = RATES_ALPHA / (2 * policy_pairs)
        share = recorded.all_secrets
        upper_bound = rate_upper_bound(
            recorded.failures, recorded.judged_secrets, recorded.reread_counts, alpha=alpha
        )
        return replace(
            recorded,
            upper_bound=upper_bound,
            all_secrets=share if share and share.alpha <= alpha else None,
        )

    return PolicyRates(**map_rates(values, rate), policy_pairs=policy_pairs)


# --------------------------------------------------------------------------- judging
@dataclass(frozen=True, slots=True)
class SecretOutcome:
    """What befell a labelled secret, and what it is.

    ``order`` decides which secret of a ``cluster`` is taken. ``trace`` is None where it was not
    looked for. ``traits`` are those of :data:`SECRET_TRAITS` but for its kind. ``is_undisputed``:
    no reader doubts that it is a secret. ``second_reader``: what the second reader says of it, as
    :meth:`RateCounter.add` is told. ``text_hash`` and ``masked_hash`` are of its point's text, and
    of that with the secret masked; None where no trace was looked for.
    """

    cluster: str
    kind: str
    order: bytes
    miss: bool
    trace: bool | None
    public: bool
    traits: tuple[str, str, str]
    is_undisputed: bool = True
    second_reader: str | None = None
    text_hash: int | None = None
    masked_hash: int | None = None

    def is_repeated(self, texts: TextCounts) -> bool:
        """Whether its point, or that with the secret masked, is the text of another point."""
        assert self.text_hash is not None and self.masked_hash is not None
        here = texts.stands_elsewhere(self.text_hash, here=True)
        return here or (
            self.masked_hash != self.text_hash
            and texts.stands_elsewhere(self.masked_hash, here=False)
        )


def _secrets_to_trace(
    outcomes: Sequence[SecretOutcome], cases: Sequence[NeighbourCase], characters: int
) -> Sequence[int]:
    """At which places of ``outcomes`` a trace is looked for. All, unless their neighbours, each as
    long as its whole point, are many times the ``characters`` of the points: then those alone that
    a rate can count, one of each cluster, and one of each cluster and kind."""
    neighbour_characters = sum(len(case.point.text) for case in cases)
    if neighbour_characters <= 16 * characters + 2**20:
        return range(len(outcomes))
    groupings = attrgetter("cluster"), attrgetter("cluster", "kind")
    counted = {id(outcome) for group in groupings for outcome in first_per_cluster(outcomes, group)}
    return [k for k, outcome in enumerate(outcomes) if id(outcome) in counted]


def _find_traces(cases: Sequence[NeighbourCase], policy: Policy) -> Iterator[tuple[bool, int]]:
    """Of each secret: whether the redacted point differs from the redacted neighbour, in its text
    or in the turns that are found in it, and the hash of the neighbour's text. Neighbours are made
    and read so many characters at a time."""
    ends = itertools.accumulate(len(case.point.text) for case in cases)
    batches = itertools.groupby(zip(cases, ends, strict=True), lambda row: row[1] // 2**24)
    for _, batch in batches:
        pairs = [(case.redacted, redact(case.point, case.places)) for case, _ in batch]
        flags = policy([neighbour for _, neighbour in pairs])
        for (redacted, neighbour), spans in zip(pairs, flags, strict=True):
            other = redact(neighbour, spans)
            same = redacted.text == other.text and find_turns(redacted) == find_turns(other)
            yield not same, hash_point_text(neighbour)


def _find_value_places(point: Point, values: Sequence[str]) -> list[list[Secret]]:
    """Where each of some values stands in what the turns of a point say, however its case, accents,
    dashes and spaces are written (:class:`crtlib.screening.value_lists.ValueFinder`); one that is
    too short or too long for that, as it is written. Inside of a longer word or number it does not
    stand; of a script without spaces each place is one.

    Guarantee:
        Test: ``tests/screening/test_unspaced_scripts.py``.
    """
    places: list[list[Secret]] = [[] for _ in values]
    lengths = [len(search_form_of(value)[0]) for value in values]
    findable = [
        k for k, n in enumerate(lengths) if MIN_VALUE_CHARACTERS <= n <= MAX_VALUE_CHARACTERS
    ]
    find = ValueFinder("labels", [ListedValue(values[k], str(k), k) for k in findable])
    exact = {k: compile_value_pattern(value) for k, value in enumerate(values) if k not in findable}
    for start, end in spoken_spans(point):
        words = point.text[start:end]
        for (s,) in find(words)[0] if findable else ():
            places[int(s.kind)].append(Secret("", start + s.start, start + s.end))
        for k, pattern in exact.items():
            places[k] += [
                Secret("", start + match.start(), start + match.end())
                for match in pattern.finditer(words)
            ]
    return places


def _is_left_in_clear(
    point: Point, places: Sequence[Secret], pieces: Sequence[UnmaskedPiece]
) -> bool:
    """Whether a character of some ``places`` that is no white space is in a piece in clear."""
    return any(
        point.text[max(s.start, c.start) : min(s.end, c.end)].strip()
        for s, c in overlapping_pairs(merge_spans([places]), pieces)
    )


def cluster_of(point: Point, cluster: ClusterUnit) -> str:
    """The person, or the dialogue where no name is known or dialogues were drawn. Raises
    ``ValueError`` for a point of neither: two of one dialogue would be taken for independent."""
    name = (point.user if cluster == "user" else "") or point.dialogue_id
    if not name:
        raise ValueError(f"cluster={cluster!r}: a point has no dialogue_id, which is its cluster")
    return name


def draw_order(seed: int, name: str, start: int) -> bytes:
    """A key by whose order secrets are drawn: of a seed, the name of a point, and a place in it."""
    place = f"{seed}\x1f{name}\x1f{start}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(place, digest_size=16).digest()


# --------------------------------------------------------------------------- counting
def first_per_cluster(
    outcomes: Sequence[SecretOutcome],
    group: Callable[[SecretOutcome], Any] = attrgetter("cluster"),
) -> list[SecretOutcome]:
    """Of each cluster the secret that comes first in ``order``, which is as good as random."""
    last_first = sorted(outcomes, key=attrgetter("order"), reverse=True)
    return list({group(outcome): outcome for outcome in last_first}.values())


def rate_upper_bound(
    failures: int,
    judged_secrets: int,
    reread_counts: Sequence[int] | None = None,
    *,
    alpha: float,
) -> float:
    """The upper bound of a rate, which fails with a probability of at most ``alpha``.

    That of Clopper and Pearson; where turns were read again the sum of two, with half of ``alpha``
    each: of the rate among what the first reader found, and of the share of secrets that fail in
    turns where he marked nothing.

    Args:
        failures: Secrets that fail.
        judged_secrets: Secrets that were judged, each of a user or a conversation of its own.
        reread_counts: That of :class:`Rate`; None: nobody read again.
        alpha: The probability with which the bound may be too low.

    Returns:
        The bound, at most 1.

    Raises:
        ValueError: For impossible counts.

    Guarantee:
        It covers the rate with ``1 - alpha``, if the secrets were drawn independently; of what was
        read again it is assumed that of the secrets that fail both readers together find at least
        the share that either alone finds of all. Tests:
        ``tests/screening/test_rates.py::test_the_bound_by_two_readers_covers``,
        ``tests/screening/test_rates.py::test_what_the_first_reader_overlooked_is_added_to_the_bound``.

    >>> [
    ...     round(rate_upper_bound(0, 400, reread_counts, alpha=0.025), 4)
    ...     for reread_counts in (None, (0, 80), (0, 400))
    ... ]
    [0.0092, 0.0642, 0.0218]
    """
    if reread_counts:
        both = (failures, judged_secrets), (reread_counts[0], reread_counts[1])
        return min(1.0, sum(rate_upper_bound(*counts, alpha=alpha / 2) for counts in both))
    return clopper_pearson_upper(failures, judged_secrets, confidence=1 - alpha)


def _count_rate(name: str, outcomes: Sequence[SecretOutcome], alpha: float) -> Rate:
    """What one reader of two alone marked counts where it fails, and nowhere else: so of a cluster
    a failure is counted wherever the secret that is taken fails, if only true ones were marked."""
    fails = attrgetter(name)
    each = list(map(fails, outcomes))
    labelled_counts = None if None in each else (sum(each), len(each))
    taken = first_per_cluster([o for o in outcomes if o.is_undisputed or fails(o)])
    reread_counts = None
    if any(outcome.second_reader is not None for outcome in outcomes):
        unmarked = [outcome for outcome in taken if outcome.second_reader == "new"]
        taken = [outcome for outcome in taken if outcome.second_reader != "new"]
        marked = {outcome.cluster for outcome in outcomes if outcome.second_reader == "found"}
        reread_counts = sum(map(fails, unmarked)), len(unmarked) + len(marked)
    failures = sum(map(fails, taken))
    return Rate(
        failures=failures,
        judged_secrets=len(taken),
        upper_bound=rate_upper_bound(failures, len(taken), reread_counts, alpha=alpha),
        origin="one_per_cluster",
        labelled_counts=labelled_counts,
        reread_counts=reread_counts,
    )


def _rates_of_pair(
    outcomes: Sequence[SecretOutcome],
    policy: Policy,
    conservative_policy: Policy,
    policy_pairs: int,
) -> dict[str, Rate]:
    alpha = RATES_ALPHA / (2 * policy_pairs)
    counted = {
        name: _count_rate(name, outcomes, alpha) if outcomes else UNKNOWN_RATE
        for name in RATE_NAMES
    }
    certain = Rate(0, counted["miss"].judged_secrets, 0.0, "policy")
    if policy.total:
        return dict.fromkeys(RATE_NAMES, certain)
    return counted | ({"public": certain} if conservative_policy.total else {})


def measure_rates(
    points: Sequence[Point],
    policy: FlagFunction,
    conservative_policy: FlagFunction,
    *,
    flags: FlaggedSpans | None = None,
    conservative_flags: FlaggedSpans | None = None,
    cluster: ClusterUnit = "user",
    policy_pairs: int = 1,
    origin: RateOrigin = "one_per_cluster",
    dedup: DedupScope = "all",
    whole_text: Iterable[Point] | None = None,
) -> PolicyRates:
    """The miss, trace and public rates of a pair of policies on labelled points, with bounds.

    The people of whom a turn taught a policy are left out, and the rates are of all others; words
    with a secret that taught one and that somebody else says count as failing in every way. Unless
    ``dedup`` is "none", a secret counts as a trace too where its point, with it or with a mask in
    its place, is the text of another point of the ``whole_text``. The trace rate bounds gamma, the
    public rate delta2 (CRT, Theorem 8.3).

    Args:
        points: Labelled whole, as drawn: which secrets are in them, not which are found.
        policy: What it flags is redacted (the paper's pi).
        conservative_policy: What it flags is private, too (the paper's pi_c).
        flags: The answers of ``policy`` on all of ``points``, if they are known already.
        conservative_flags: Those of ``conservative_policy``.
        cluster: What was drawn; a point without a user counts for its dialogue.
        policy_pairs: Pairs of policies that these labels have judged so far, this one included;
            each bound holds with 1 - 0.05 / (2 policy_pairs), so trace and public of all pairs
            together with 95 %.
        origin: "one_per_cluster", or "exchangeable" for the rates of
            :func:`crtlib.intervals.exchangeable_rate`, which hold on average over a draw at random,
            for those whom nobody read, without a confidence.
        dedup: That of :func:`crtlib.screening.preparation.prepare_points`.
        whole_text: All points of the text that is deduplicated; None: ``points`` themselves.

    Returns:
        The three rates. Without labels all is unknown and each bound 1, but for a policy that flags
        everything: with it as ``conservative_policy`` nothing is public, with it as ``policy``
        nothing leaves a trace, whatever the labels: all points are then ``<MASK>`` and nothing
        else, copies too.

    Raises:
        ValueError: For arguments outside their range, and as the policies do.

    Guarantee:
        Let a secret be drawn as above, and ``x`` be its point. With a probability of at most
        ``trace.upper_bound`` what :func:`crtlib.screening.preparation.prepare_points` makes of the
        text (with duplicates "mask_private" or "mask", by the exact pattern) differs from what it
        makes of the text with the secret masked in ``x``, and with at most ``public.upper_bound``
        it stands in the public part; both bounds hold together with a confidence of 0.95, if the
        points were drawn at random and labelled whole. Public: how many were labelled, and the
        rates.
        Tests: ``tests/screening/test_repeats.py::test_a_secret_without_a_trace_changes_nothing``,
        ``tests/screening/test_repeats.py::
        test_a_secret_in_a_repeated_message_is_a_trace_whichever_half_repeats``.
    """
    check_choice("origin", origin, ("one_per_cluster", "exchangeable"))
    texts = TextCounts(points if whole_text is None else whole_text) if dedup != "none" else None
    counter = RateCounter(policy, conservative_policy, cluster=cluster, texts=texts)
    counter.add(points, flags=flags, conservative_flags=conservative_flags)
    counted = counter.rates(policy_pairs=policy_pairs)
    if origin == "one_per_cluster":
        return counted

    def mean(rate: Rate) -> Rate:
        if rate.origin != "one_per_cluster":
            return rate
        upper_bound = exchangeable_rate(
            rate.failures, rate.judged_secrets, policy_pairs=policy_pairs
        )
        return replace(rate, upper_bound=upper_bound, origin="exchangeable")

    return replace(counted, **map_rates(vars(counted), mean))


class RateCounter:
    """Counts what :func:`measure_rates` counts, a batch of points after another.

    Args:
        cluster: Of what one secret is taken: a user or a dialogue.
        seed: Decides which secret is taken of a cluster.
        kinds: Kinds of secrets that may be shown beside :data:`SHOWN_KINDS`; any other is shown as
            "other", as a label's kind may be any text.
        texts: How often each text stands in the whole text, where that is deduplicated; it may
            still grow until rates are asked for. None: it is not deduplicated.
        find_values_in_whole_point: A labelled value is looked for in its whole point, as labels of
            one's own text need not say of each place that it is one. Those of a known corpus do.
        one_message: One message of each cluster was drawn at random, so that the share of all
            secrets (:meth:`all_secrets`) has a bound too.
    """

    def __init__(
        self,
        policy: FlagFunction,
        conservative_policy: FlagFunction,
        *,
        cluster: ClusterUnit = "user",
        seed: int = 0,
        kinds: Iterable[str] = (),
        texts: TextCounts | None = None,
        find_values_in_whole_point: bool = False,
        one_message: bool = False,
    ) -> None:
        check_choice("cluster", cluster, ("user", "dialogue"))
        self.kinds = SHOWN_KINDS.union(kinds)
        self.policy = as_policy(policy)
        self.conservative_policy = as_policy(conservative_policy)
        self.cluster, self.seed = cluster, seed
        self.texts, self.one_message = texts, one_message
        self.find_values_in_whole_point = find_values_in_whole_point
        self.points = self.left_out = 0
        self.apart: set[str] = set()
        """Clusters of whom the rates do not speak, of those that were drawn."""
        self._outcomes: list[SecretOutcome] = []
        self._unread: list[SecretOutcome] = []
        self.judged_turns: set[tuple[str, str]] = set()  # each turn, and what decides its rates

    def add(
        self,
        points: Sequence[Point],
        *,
        flags: FlaggedSpans | None = None,
        conservative_flags: FlaggedSpans | None = None,
        undisputed: Container[tuple[str, int]] | None = None,
        second_reader: Mapping[str, str] | None = None,
    ) -> list[SecretOutcome]:
        """Judge the policies on further points: what befalls each labelled secret.

        Canaries do not count. Of people who taught one of the policies nothing does, whatever they
        say (:meth:`leave_out`); what taught one in the words of somebody else counts as failing
        (:meth:`add_failing`).

        Both policies are called on the points, unless their answers are given, and ``policy`` on
        neighbours, each of which has the size of its whole point: where there are many secrets in
        a point only those are looked at that count, one of each cluster and kind. Which secret of a
        cluster is taken follows from :func:`draw_order` of the seed, its point's id and its start.

        Args:
            points: Labelled whole.
            flags: The answers of ``policy`` on all of ``points``, if they are known already.
            conservative_flags: Those of ``conservative_policy``.
            undisputed: Point and start of each secret that no reader doubts; None: of all.
            second_reader: What a second reader found in turns drawn at random, by cluster: "new"
                where the first had marked nothing, "found" where he marked a secret that stands;
                None: nobody read again.

        Returns:
            The outcomes of the secrets of these points that were judged, in order.
        """
        flags = self.policy(points) if flags is None else flags
        if conservative_flags is None:
            conservative_flags = self.conservative_policy(points)
        teachers = [*self.policy.taught_by, *self.conservative_policy.taught_by]
        outcomes: list[SecretOutcome] = []
        cases: list[NeighbourCase] = []
        characters = 0
        for point, spans, suspected in zip(points, flags, conservative_flags, strict=True):
            if point.user.startswith(CANARY_USER_PREFIX):
                continue
            if any(teaching.was_taught_by(point) for teaching in teachers):
                self.leave_out([point])
                continue
            if any(teaching.judged_by(point) for teaching in teachers):
                self.add_failing([point])
                continue
            self.points += 1
            if not point.secrets:
                continue
            self.judged_turns.add(
                (identity.hash_turn_text(point.text), f"{point.id} {point.user} {point.secrets}")
            )
            characters += len(point.text)
            judged = self._judge_point(point, spans, suspected, undisputed, second_reader)
            outcomes += (outcome for outcome, _ in judged)
            cases += (case for _, case in judged)
        # Where readers disagree a failure counts wherever it stands, so all traces are looked for.
        to_trace: Sequence[int] = range(len(outcomes))
        if undisputed is None:
            to_trace = _secrets_to_trace(outcomes, cases, characters)
        traces = _find_traces([cases[k] for k in to_trace], self.policy)
        for k, (trace, masked_hash) in zip(to_trace, traces, strict=True):
            outcomes[k] = replace(outcomes[k], trace=trace, masked_hash=masked_hash)
        self._outcomes += outcomes
        return self._with_repeats(outcomes)

    def _judge_point(
        self,
        point: Point,
        spans: Spans,
        suspected: Spans,
        undisputed: Container[tuple[str, int]] | None,
        second_reader: Mapping[str, str] | None,
    ) -> list[tuple[SecretOutcome, NeighbourCase]]:
        """Of each labelled secret of a point what befalls it, but for its trace, and what its trace
        is looked for in. ``spans`` are what the policy flags, ``suspected`` what the conservative
        one does; the rest is as :meth:`add` has it."""
        redacted = redact(point, spans)
        public = not (spans or suspected or MASK in point.text)
        pieces, text_hash = unmasked_pieces(point.text, spans), hash_point_text(point)
        places = self._places_of_values(point)
        missed = {value: _is_left_in_clear(point, some, pieces) for value, some in places.items()}
        cluster = cluster_of(point, self.cluster)
        judged = []
        for secret in point.secrets:
            value = _comparable_value(point, secret)
            outcome = SecretOutcome(
                cluster=cluster,
                kind=secret.kind,
                order=draw_order(self.seed, point.id, secret.start),
                miss=missed[value],
                trace=None,
                public=public,
                traits=_traits_of_secret(point.text, secret),
                is_undisputed=undisputed is None or (point.id, secret.start) in undisputed,
                second_reader=None if second_reader is None else second_reader.get(cluster, ""),
                text_hash=text_hash,
            )
            judged.append((outcome, NeighbourCase(point, redacted, places[value])))
        return judged

    def leave_out(self, points: Iterable[Point]) -> None:
        """Leave out people, by a rule that knows who they are and not what they say: the rates
        are of all others, which whoever prints them has to say."""
        for p in points:
            self.left_out += 1
            self.apart.add(cluster_of(p, self.cluster))

    def add_failing(self, points: Iterable[Point]) -> None:
        """Count points that were drawn and may not judge, as a policy was taught by what they say
        or may have been made from it: each of their secrets as one on which the policies fail in
        every way.

        Which messages these are follows from what they say, so without them the others are no
        random draw: a policy may fail on just these. As in :meth:`add_unread` the bound is at least
        that of who judges them all.

        Guarantee:
            Each point that was drawn is judged, counts as failing, or is left out for who says it.
            Test: ``tests/release/test_drawn_turns.py::test_each_drawn_turn_has_one_fate``.
        """
        for p in points:
            self.points += 1
            for s in p.secrets:
                self._outcomes.append(
                    SecretOutcome(
                        cluster=cluster_of(p, self.cluster),
                        kind=s.kind,
                        order=draw_order(self.seed, p.id, s.start),
                        miss=True,
                        trace=True,
                        public=True,
                        traits=_traits_of_secret(p.text, s),
                    )
                )

    def add_unread(self, turns: Iterable[Point]) -> None:
        """Count turns that were drawn, one of each cluster, and that nobody read: each as a secret
        on which the policies fail in every way, of every kind.

        Guarantee:
            With u unread turns of which v hold a secret, on g of which a policy fails, whoever
            reads all counts f + g of s + v failures, and here are f + u of s + u. As g <= v <= u
            and f <= s, both the share and every bound of this module are at least those of a whole
            reading, whichever turns were left; so the labels are those of a random draw. Tests:
            ``tests/release/test_unread_turns.py::test_a_bound_with_unread_turns_is_above_that_of_a_whole_reading``
            and, of a certificate, ``...::test_hard_turns_that_were_left_unread_are_in_the_bound``.
        """
        fails: dict[str, Any] = {"miss": True, "trace": True, "public": True}
        for p in turns:
            name, order = cluster_of(p, self.cluster), draw_order(self.seed, p.id, 0)
            self._unread.append(
                SecretOutcome(cluster=name, kind="", order=order, traits=("", "", ""), **fails)
            )

    def _places_of_values(self, point: Point) -> dict[str, list[Secret]]:
        """Of each labelled value of a point, which is one secret wherever it stands, its places."""
        places: dict[str, list[Secret]] = {}
        for s in point.secrets:
            places.setdefault(_comparable_value(point, s), []).append(s)
        if self.find_values_in_whole_point:
            values = [point.text[some[0].start : some[0].end] for some in places.values()]
            for some, more in zip(places.values(), _find_value_places(point, values), strict=True):
                some += more
        return places

    def _with_repeats(self, outcomes: Iterable[SecretOutcome]) -> list[SecretOutcome]:
        """The outcomes, of which those of a secret that stands in a repeated text leave a trace."""
        texts = self.texts
        if texts is None:
            return list(outcomes)
        return [
            replace(outcome, trace=True)
            if outcome.trace is False and outcome.is_repeated(texts)
            else outcome
            for outcome in outcomes
        ]

    @property
    def outcomes(self) -> list[SecretOutcome]:
        """All secrets that were judged, with what befell them in the text as it is known by now."""
        return self._with_repeats(self._outcomes)

    def rates(
        self, *, policy_pairs: int = 1, outcomes: Sequence[SecretOutcome] | None = None
    ) -> PolicyRates:
        """The rates of what was counted so far, or of some of its ``outcomes``, of which nobody
        left any unread. ``policy_pairs``: as :func:`measure_rates` takes it."""
        check_allowed("policy_pairs", policy_pairs, policy_pairs >= 1, "at least 1")
        judged, unread = (self.outcomes, self._unread) if outcomes is None else (outcomes, [])
        policies = self.policy, self.conservative_policy
        counted = _rates_of_pair([*judged, *unread], *policies, policy_pairs)
        if self.one_message and outcomes is None:
            counted = {
                name: replace(rate, all_secrets=self.all_secrets(name, policy_pairs=policy_pairs))
                if rate.origin == "one_per_cluster"
                else rate
                for name, rate in counted.items()
            }
        return PolicyRates(
            **counted,
            by_kind=self.rates_by_trait("kind", policy_pairs=policy_pairs, outcomes=outcomes),
            cluster=self.cluster,
            points=self.points,
            secrets=len(judged),
            left_out=self.left_out,
            policy_pairs=policy_pairs,
            apart=len(self.apart),
        )

    def all_secrets(self, name: str, *, policy_pairs: int = 1) -> ShareOfSecrets | None:
        """Of all secrets in the messages that were read, not of one a message, how many fail by
        one of :data:`RATE_NAMES`, with a bound; one message of each cluster must have been drawn.

        Args:
            name: A rate.
            policy_pairs: Pairs of policies that these labels have judged so far, this one included.

        Returns:
            The share, with a bound of its own, by :func:`bound_share_of_secrets`. None where no
            message holds more than one, so that it is the rate; where not all secrets were looked
            at; and where a second reader read: he read some of the messages, so how many secrets
            both overlook in the others is not known, and a message weighs as many as it holds.

        Guarantee:
            The bound covers the share of all secrets of messages so drawn, of a message at most
            ``cap``, with 1 - 0.05 / (2 policy_pairs). Test:
            ``tests/screening/test_secret_shares.py::test_the_counted_bound_covers_all_secrets``.
        """
        outcomes = self.outcomes
        each = [getattr(outcome, name) for outcome in outcomes]
        if None in each or any(
            not outcome.is_undisputed or outcome.second_reader is not None for outcome in outcomes
        ):
            return None
        failing, held = Counter[str](), Counter[str]()
        for outcome, fails in zip(outcomes, each, strict=True):
            failing[outcome.cluster] += bool(fails)
            held[outcome.cluster] += 1
        counts_of_messages = [(failing[cluster], n) for cluster, n in held.items()]
        alpha = RATES_ALPHA / (2 * policy_pairs)
        share = bound_share_of_secrets(counts_of_messages, alpha=alpha, unread=len(self._unread))
        return share if share.cap > 1 else None

    def rates_by_trait(
        self,
        trait: str,
        *,
        policy_pairs: int = 1,
        outcomes: Sequence[SecretOutcome] | None = None,
    ) -> dict[str, dict[str, Rate]]:
        """The rates of the secrets that share a trait, one of :data:`SECRET_TRAITS`; each bound
        holds for itself. The rest is as :meth:`rates` has it."""
        judged, unread = (self.outcomes, self._unread) if outcomes is None else (outcomes, [])
        groups: dict[str, list[SecretOutcome]] = {}
        for outcome in judged:
            kind = outcome.kind if outcome.kind in self.kinds else "other"
            value = (kind, *outcome.traits)[SECRET_TRAITS.index(trait)]
            groups.setdefault(value, []).append(outcome)
        policies = self.policy, self.conservative_policy
        return {
            value: _rates_of_pair([*groups[value], *unread], *policies, policy_pairs)
            for value in sorted(groups)
        }


def _comparable_value(point: Point, secret: Secret) -> str:
    """The value of a secret as it is compared with others, however it is written."""
    value = point.text[secret.start : secret.end]
    return search_form_of(value)[0] or value
