"""The three rates that a guarantee of CRT rests on, counted on labels, with upper bounds.

Let ``x`` be a data point that holds a labelled secret, and let ``x'`` be the same point with the
secret replaced by ``<MASK>`` wherever its value occurs there. The policies label each separately.

- **miss**: at one of the places of the secret's value, a character other than white space is in no
  span of ``pi``. This rate is for people; no guarantee uses it.
- **trace**: the redacted ``x`` differs from the redacted ``x'``; or, where points are deduplicated,
  another point has the same text as ``x`` or ``x'``. Its probability is gamma of Theorem 8.3: if
  there is no trace, training reads the same in both worlds. A missed secret leaves a trace, and a
  found secret can leave one as well: half a name, a neighbouring word that is no longer flagged, a
  space between two masks. So can a message that occurs twice, as its second copy is left out or
  masked until the first one changes. That is why recall never enters a guarantee.
- **public**: neither policy flags anything in ``x``, so it trains without noise with the secret in
  it. Its probability is delta2.

The probability is over *drawing a user, then one of that user's secrets*. One secret is taken from
each labelled user, so the outcomes are independent however similar one user's secrets are, and the
bound of Clopper and Pearson is exact. Where one turn of each user was read, the probability is over
*drawing a user and one of that user's turns, both again until the turn holds a secret*. Users who
seldom mention a secret then count less.

Readers overlook secrets, and mark text that is not secret. Where a second reader has read, blind,
every turn with a mark and a random share of all turns, :func:`rate_upper_bound` accounts for what
the first reader overlooked (docs/decisions/8-two-readers.md). Otherwise the first reader's marks
are taken to be complete.

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

Every secret is found, but every message has copies:

>>> twice = [message(i, "I am Ada") for i in range(200)]
>>> measure_rates(twice, oracle_policy, none_policy).trace.failures
200
>>> measure_rates(twice, oracle_policy, none_policy, dedup="none").trace.failures
0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from crtlib.checks import check_allowed, check_choice
from crtlib.intervals import exchangeable_rate
from crtlib.screening.deduplication import TextCounts, hash_point_text
from crtlib.screening.policy import FlagFunction, Policy, as_policy
from crtlib.screening.preparation import DedupScope
from crtlib.screening.rate_values import (
    RATE_NAMES,
    RATES_ALPHA,
    UNKNOWN_RATE,
    ClusterUnit,
    PolicyRates,
    Rate,
    RateOrigin,
    map_rates,
    rate_upper_bound,
)
from crtlib.screening.redaction import (
    FlaggedSpans,
    Spans,
    redact,
    unmasked_pieces,
)
from crtlib.screening.secret_outcomes import (
    SECRET_TRAITS,
    NeighbourCase,
    SecretOutcome,
    cluster_of,
    comparable_value,
    draw_order,
    find_traces,
    find_value_places,
    first_per_cluster,
    is_left_in_clear,
    secrets_to_trace,
    traits_of_secret,
)
from crtlib.screening.secret_shares import ShareOfSecrets, bound_share_of_secrets
from crtlib.text import customersim, identity, multiwoz, records
from crtlib.text.canaries import CANARY_USER_PREFIX
from crtlib.text.records import MASK, Point, Secret

SHOWN_KINDS = frozenset(
    {
        *customersim.CUSTOMERSIM_KINDS,
        *multiwoz.KINDS_BY_SLOT.values(),
        *records.LABEL_KINDS,
        "number",
        "date",
    }
)
"""Kinds of secrets whose names are shown; any other kind is shown as "other"."""


def _take_one_of_each(name: str, outcomes: Iterable[SecretOutcome]) -> list[SecretOutcome]:
    """The secret of each cluster that counts. One that only one of two readers marked counts where
    it fails, and is ignored otherwise. So a failure is counted for a cluster whenever the secret
    taken from it would fail if only true secrets were marked."""
    fails = attrgetter(name)
    return first_per_cluster([o for o in outcomes if o.is_undisputed or fails(o)])


def _count_rate(name: str, outcomes: Sequence[SecretOutcome], alpha: float) -> Rate:
    """One of the three rates, from one secret of each cluster (:func:`_take_one_of_each`)."""
    fails = attrgetter(name)
    failed = list(map(fails, outcomes))
    labelled_counts = None if None in failed else (sum(failed), len(failed))
    drawn = _take_one_of_each(name, outcomes)
    reread_counts = None
    if any(outcome.second_reader is not None for outcome in outcomes):
        unmarked = [outcome for outcome in drawn if outcome.second_reader == "new"]
        drawn = [outcome for outcome in drawn if outcome.second_reader != "new"]
        marked_clusters = {
            outcome.cluster for outcome in outcomes if outcome.second_reader == "found"
        }
        reread_counts = sum(map(fails, unmarked)), len(unmarked) + len(marked_clusters)
    failures = sum(map(fails, drawn))
    return Rate(
        failures=failures,
        judged_secrets=len(drawn),
        upper_bound=rate_upper_bound(failures, len(drawn), reread_counts, alpha=alpha),
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
    rates = {
        name: _count_rate(name, outcomes, alpha) if outcomes else UNKNOWN_RATE
        for name in RATE_NAMES
    }
    certain_rate = Rate(0, rates["miss"].judged_secrets, 0.0, "policy")
    if policy.flags_everything:
        return dict.fromkeys(RATE_NAMES, certain_rate)
    return rates | ({"public": certain_rate} if conservative_policy.flags_everything else {})


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

    The people whose turns taught a policy are left out, and the rates cover everybody else. A
    secret counts as failing in every way where somebody else repeats the words that taught a
    policy. Unless ``dedup`` is "none", a secret also counts as a trace where another point of the
    ``whole_text`` has the text of its point, as it is or with a mask in place of the secret. The
    trace rate bounds gamma, the public rate delta2 (CRT, Theorem 8.3).

    Args:
        points: The points as they were drawn, completely labelled: with the secrets that are in
            them, not those that a policy finds.
        policy: What it flags is redacted (the paper's pi).
        conservative_policy: What it flags is private as well (the paper's pi_c).
        flags: The answers of ``policy`` on all of ``points``, if they are already known.
        conservative_flags: Those of ``conservative_policy``.
        cluster: The unit that was drawn; a point without a user counts for its dialogue.
        policy_pairs: Pairs of policies that these labels have judged so far, this one included.
            Each bound holds with probability 1 - 0.05 / (2 policy_pairs), so the trace and public
            bounds of all pairs hold together with 95 %.
        origin: "one_per_cluster", or "exchangeable" for the rates of
            :func:`crtlib.intervals.exchangeable_rate`. Those have no confidence level: they hold on
            average over a random draw, for the people whom nobody read.
        dedup: As in :func:`crtlib.screening.preparation.prepare_points`.
        whole_text: All points of the text that is deduplicated; None: ``points`` themselves.

    Returns:
        The three rates. Without labels they are unknown and each bound is 1, except for a policy
        that flags everything. With such a ``conservative_policy`` nothing is public. With such a
        ``policy`` nothing leaves a trace, whatever the labels: every point, copies included, is
        then ``<MASK>`` and nothing else.

    Raises:
        ValueError: For arguments outside their range, and where a policy raises it.

    Guarantee:
        Let a secret be drawn as the module describes, and let ``x`` be its point. Compare what
        :func:`crtlib.screening.preparation.prepare_points` makes of the text (with duplicates
        "mask_private" or "mask", by the exact pattern) with what it makes of the text with the
        secret masked in ``x``. The two differ with a probability of at most ``trace.upper_bound``,
        and the secret is in the public part with a probability of at most ``public.upper_bound``.
        Both bounds hold together with a confidence of 0.95 if the points were drawn at random and
        completely labelled. How many were labelled, and the rates, are public.
        Tests: ``tests/screening/test_repeats.py::test_a_secret_without_a_trace_changes_nothing``,
        ``tests/screening/test_repeats.py::
        test_a_secret_in_a_repeated_message_is_a_trace_whichever_half_repeats``.
    """
    check_choice("origin", origin, ("one_per_cluster", "exchangeable"))
    texts = TextCounts(points if whole_text is None else whole_text) if dedup != "none" else None
    counter = RateCounter(policy, conservative_policy, cluster=cluster, texts=texts)
    counter.add(points, flags=flags, conservative_flags=conservative_flags)
    measured = counter.rates(policy_pairs=policy_pairs)
    if origin == "one_per_cluster":
        return measured

    def mean(rate: Rate) -> Rate:
        if rate.origin != "one_per_cluster":
            return rate
        upper_bound = exchangeable_rate(
            rate.failures, rate.judged_secrets, policy_pairs=policy_pairs
        )
        return replace(rate, upper_bound=upper_bound, origin="exchangeable")

    return replace(measured, **map_rates(vars(measured), mean))


class RateCounter:
    """Counts what :func:`measure_rates` counts, one batch of points after another.

    Args:
        cluster: The unit from which one secret is taken: a user or a dialogue.
        seed: Decides which secret is taken from a cluster.
        kinds: Kinds of secrets that may be shown in addition to :data:`SHOWN_KINDS`. Any other is
            shown as "other", since a label's kind may be any text.
        texts: Which texts occur more than once in the whole text, where that is deduplicated. It
            may still grow until rates are computed. None: the text is not deduplicated.
        find_values_in_whole_point: Whether to look for each labelled value in its whole point,
            because labels of one's own text need not mark every place of a value. Those of a known
            corpus do.
        one_message: Whether one message of each cluster was drawn at random, so that the share of
            all secrets (:meth:`all_secrets`) has a bound too.
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
        self.points = self.left_out_points = 0
        self.left_out_clusters: set[str] = set()
        """The clusters that were drawn but are left out, so that the rates do not cover them."""
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
        """Judge the policies on each labelled secret of further points.

        Canaries do not count. Nothing counts from people who taught one of the policies, whatever
        they say (:meth:`leave_out`). Where somebody else repeats words that taught a policy, the
        point counts as failing (:meth:`add_failing`).

        Both policies are called on the points unless their answers are given. ``policy`` is also
        called on neighbours, each as long as its whole point. So where points hold many secrets,
        only those are examined that count: one for each cluster, and one for each cluster and kind.
        Which secret of a cluster is taken follows from :func:`draw_order` of the seed, its point's
        id and its start.

        Args:
            points: Completely labelled.
            flags: The answers of ``policy`` on all of ``points``, if they are already known.
            conservative_flags: Those of ``conservative_policy``.
            undisputed: Point and start of each secret that no reader doubts; None: all secrets.
            second_reader: What a second reader found in randomly drawn turns, by cluster: "new"
                where the first reader had marked nothing, "found" where the first had marked
                something and the second marked a secret that stands. None: nobody read again.

        Returns:
            The outcomes of those secrets in these points that were judged, in order.
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
            if any(teaching.repeats_taught_words(point) for teaching in teachers):
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
        # A disputed secret counts wherever it fails, so all traces are looked for.
        to_trace: Sequence[int] = range(len(outcomes))
        if undisputed is None:
            to_trace = secrets_to_trace(outcomes, cases, characters)
        traces = find_traces([cases[k] for k in to_trace], self.policy)
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
        """For each labelled secret of a point, its outcome without the trace, and the case in which
        the trace is looked for. ``spans`` are what the policy flags, ``suspected`` what the
        conservative one flags; the other arguments are those of :meth:`add`."""
        redacted = redact(point, spans)
        public = not (spans or suspected or MASK in point.text)
        pieces, text_hash = unmasked_pieces(point.text, spans), hash_point_text(point)
        places = self._places_of_values(point)
        missed = {
            value: is_left_in_clear(point, places_of_value, pieces)
            for value, places_of_value in places.items()
        }
        cluster = cluster_of(point, self.cluster)
        judged = []
        for secret in point.secrets:
            value = comparable_value(point, secret)
            outcome = SecretOutcome(
                cluster=cluster,
                kind=secret.kind,
                order=draw_order(self.seed, point.id, secret.start),
                miss=missed[value],
                trace=None,
                public=public,
                traits=traits_of_secret(point.text, secret),
                is_undisputed=undisputed is None or (point.id, secret.start) in undisputed,
                second_reader=None if second_reader is None else second_reader.get(cluster, ""),
                text_hash=text_hash,
            )
            judged.append((outcome, NeighbourCase(point, redacted, places[value])))
        return judged

    def leave_out(self, points: Iterable[Point]) -> None:
        """Leave out people, by a rule that depends on who they are and not on what they say. The
        rates then cover everybody else, which whoever prints them has to state."""
        for p in points:
            self.left_out_points += 1
            self.left_out_clusters.add(cluster_of(p, self.cluster))

    def add_failing(self, points: Iterable[Point]) -> None:
        """Count the secrets of points that were drawn but may not judge as ones on which the
        policies fail in every way. Such points taught a policy by what they say, or a policy may
        have been made from it.

        Which messages these are follows from what they say, so the others alone would not be a
        random draw: a policy may fail on exactly these. As in :meth:`add_unread`, the bound is at
        least the one that judging them all would give.

        Guarantee:
            Every point that was drawn is judged, counts as failing, or is left out because of who
            says it.
            Test: ``tests/release/test_drawn_turns.py::test_each_drawn_turn_has_one_fate``.
        """
        for point in points:
            self.points += 1
            for secret in point.secrets:
                self._outcomes.append(
                    SecretOutcome(
                        cluster=cluster_of(point, self.cluster),
                        kind=secret.kind,
                        order=draw_order(self.seed, point.id, secret.start),
                        miss=True,
                        trace=True,
                        public=True,
                        traits=traits_of_secret(point.text, secret),
                    )
                )

    def add_unread(self, turns: Iterable[Point]) -> None:
        """Count turns that were drawn, one of each cluster, but that nobody read. Each counts as a
        secret of every kind on which the policies fail in every way.

        Guarantee:
            Let the turns that were read hold s secrets, f of which fail. Let u turns be unread, v
            of which hold a secret, and let a policy fail on g of those. A complete reading counts
            f + g failures in s + v secrets; here f + u in s + u are counted. As g <= v <= u and
            f <= s, both the share and every bound of this module are at least those of a complete
            reading, whichever turns were left unread. So the labels count as a random draw. Tests:
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
        """The places of each labelled value of a point, which is one secret wherever it occurs and
        in each of the spellings that are labelled."""
        places: dict[str, list[Secret]] = {}
        spellings: dict[str, list[Secret]] = {}
        for s in point.secrets:
            places_of_value = places.setdefault(comparable_value(point, s), [])
            places_of_value.append(s)
            spellings[point.text[s.start : s.end]] = places_of_value
        if self.find_values_in_whole_point:
            further_places = find_value_places(point, list(spellings))
            for places_of_value, further in zip(spellings.values(), further_places, strict=True):
                places_of_value += further
        return places

    def _with_repeats(self, outcomes: Iterable[SecretOutcome]) -> list[SecretOutcome]:
        """The outcomes, where every secret in a repeated text leaves a trace."""
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
        """The outcomes of all secrets counted so far, given the repeated texts known by now."""
        return self._with_repeats(self._outcomes)

    def rates(
        self, *, policy_pairs: int = 1, outcomes: Sequence[SecretOutcome] | None = None
    ) -> PolicyRates:
        """The rates of everything counted so far, or of some of its ``outcomes``, a group to which
        no unread turn belongs. ``policy_pairs`` is that of :func:`measure_rates`."""
        check_allowed("policy_pairs", policy_pairs, policy_pairs >= 1, "at least 1")
        judged, unread = (self.outcomes, self._unread) if outcomes is None else (outcomes, [])
        policies = self.policy, self.conservative_policy
        rates = _rates_of_pair([*judged, *unread], *policies, policy_pairs)
        if self.one_message and outcomes is None:
            rates = {
                name: replace(rate, all_secrets=self.all_secrets(name, policy_pairs=policy_pairs))
                if rate.origin == "one_per_cluster"
                else rate
                for name, rate in rates.items()
            }
        return PolicyRates(
            **rates,
            by_kind=self.rates_by_trait("kind", policy_pairs=policy_pairs, outcomes=outcomes),
            cluster=self.cluster,
            points=self.points,
            secrets=len(judged),
            left_out_points=self.left_out_points,
            policy_pairs=policy_pairs,
            left_out_clusters=len(self.left_out_clusters),
        )

    def count_disputed_failures(self, name: str) -> int:
        """How many of the failures of a rate, one of each cluster, are secrets that only one of two
        readers marked. ``name`` is that of the rate, one of :data:`RATE_NAMES`."""
        return sum(
            getattr(outcome, name) and not outcome.is_undisputed
            for outcome in _take_one_of_each(name, [*self.outcomes, *self._unread])
            if outcome.second_reader != "new"
        )

    def all_secrets(self, name: str, *, policy_pairs: int = 1) -> ShareOfSecrets | None:
        """The share of all secrets in the messages that were read, not of one for each message,
        that fail, with a bound. One message of each cluster must have been drawn.

        Args:
            name: The rate by which a secret fails, one of :data:`RATE_NAMES`.
            policy_pairs: Pairs of policies that these labels have judged so far, this one included.

        Returns:
            The share, with a bound of its own, by :func:`bound_share_of_secrets`. None where no
            message holds more than one secret, so that the share is the rate, and where not all
            secrets were examined. None also where a second reader read: how many secrets of a
            message both overlook is not known, and a message weighs as many as it holds.

        Guarantee:
            The bound covers the share of all secrets in messages drawn this way, at most ``cap``
            for each message, with probability 1 - 0.05 / (2 policy_pairs). Test:
            ``tests/screening/test_secret_shares.py::test_the_counted_bound_covers_all_secrets``.
        """
        outcomes = self.outcomes
        failed = [getattr(outcome, name) for outcome in outcomes]
        if None in failed or any(
            not outcome.is_undisputed or outcome.second_reader is not None for outcome in outcomes
        ):
            return None
        failing, secret_counts = Counter[str](), Counter[str]()
        for outcome, fails in zip(outcomes, failed, strict=True):
            failing[outcome.cluster] += bool(fails)
            secret_counts[outcome.cluster] += 1
        counts_of_messages = [(failing[cluster], n) for cluster, n in secret_counts.items()]
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
        """The rates for each value of a trait, one of :data:`SECRET_TRAITS`; each bound holds on
        its own. The other arguments are those of :meth:`rates`."""
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
