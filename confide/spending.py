"""What earlier trainings on a text have spent, and what is left out of the sum."""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confide.odometer import (
    find_odometer,
    prepare_odometer,
    read_corpus_hash,
    read_entries,
)
from confide.odometer_lines import PRIVACY_UNITS, OdometerEntry
from confide.text_registry import Registry
from crtlib.accounting import events, privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.checks import check_delta


@dataclass(frozen=True)
class SpendingHistory:
    """What is known of a text: ``entries`` of its odometer and, from the registry, of runs on text
    with the same conversations, people or messages; ``others`` are the registry's lines of any
    text, for what a model started from; ``recut_texts`` are those whose conversations, or people,
    may be others than those of this one, whose hash ``corpus`` is."""

    entries: tuple[OdometerEntry, ...]
    others: tuple[OdometerEntry, ...] = ()
    recut_texts: Mapping[str, set[str]] = field(default_factory=dict)
    corpus: str | None = None

    def spent(self, run: str | None = None, bases: Iterable[str] = ()) -> SpentBudget:
        """What was spent by all runs, or by those that started before ``run`` did, or that would
        be before one that starts from ``bases``, hashes of a model."""
        known = sum_spending(self.entries, run=run, others=self.others, bases=bases)
        return replace(known, recut_texts=self.recut_texts, corpus=self.corpus)


def read_history(
    folder: str | os.PathLike[str], registry: Registry | None, run: str | None = None
) -> SpendingHistory:
    """The lines of an odometer and those that the registry adds: of runs that are not in it, or
    are further there, and that started before ``run`` last did, where it knows when that was."""
    own, corpus = read_entries(folder), read_corpus_hash(Path(folder)) or ""
    if registry is None:
        return SpendingHistory(tuple(own), corpus=corpus)
    every = registry.entries()
    related = registry.find_related_texts(corpus)
    earlier = {e.run for e in every[: _last_start(every, run)] if e.corpus in related} - {run}

    lines_here, lines_there = Counter(e.run for e in own), Counter(e.run for e in every)
    missing = {name for name in earlier if not lines_here[name]}
    # A process was killed between the two ledgers: the registry has its last line alone.
    behind = {name for name in earlier - missing if lines_here[name] < lines_there[name]}
    before_own = [e for e in every if e.run in missing]
    after_own = [e for e in every if e.run in behind]

    other_texts = {text for text in related if related[text]}  # than this one
    of_other_people = {text for text in other_texts if not _has_same_people(related[text])}
    cut_otherwise = {"dialogue": other_texts, "user": of_other_people}
    entries = (*before_own, *own, *after_own)
    return SpendingHistory(entries, tuple(every), cut_otherwise, corpus)


def read_history_of(
    corpus: str | os.PathLike[str], text: str, registry: Registry
) -> SpendingHistory:
    """What is known of the text in a file or folder, whose hash is ``text``: by the odometer beside
    it, if there is one, and by the registry. No odometer is made."""
    return read_history_of_text(find_odometer(corpus, text), text, registry)


def read_history_of_text(
    folder: Path, text: str, registry: Registry, run: str | None = None
) -> SpendingHistory:
    """:func:`read_history` of the text with this hash, whose odometer need not be there yet; none
    is made."""
    with tempfile.TemporaryDirectory() as new:
        if not folder.is_dir():
            folder = Path(new) / "odometer"
            prepare_odometer(folder, text)
        return read_history(folder, registry, run)


def _has_same_people(shared: Counter[str]) -> bool:
    """Whether two texts that share so many units of a kind name all their people, and each
    conversation and each message in both has exactly the same people in the one as in the other.
    What cannot be compared, as it was entered by an older crtlib, is too much, or was left by a
    screening, has others.

    Guarantee:
        A second person in one of the texts is no reason to pass a message over. Test:
        ``tests/release/test_same_people.py::test_a_second_speaker_makes_nobody_the_same``.
    """
    same = shared["talk"] == shared["owners"] and shared["spoken"] == shared["speakers"]
    return bool(shared["compared"]) and same


@dataclass(frozen=True)
class SpentBudget:
    """What earlier runs have spent: the last line of each, without those that were struck.
    ``base_unprotected``: the weights that this run started from had learned the text without
    protection, or with one that is void; ``inherited_unprotected`` are runs of which that is true.
    ``ancestors``: the runs from whose models this one started, at any remove. ``run_is_struck``:
    this run was. ``excluded_runs``: how many runs do not count, as they were struck.
    ``recut_texts``: those whose conversations, or people, may be others than those of this one,
    whose hash ``corpus`` is; None where all are of one text."""

    entries: tuple[OdometerEntry, ...]
    base_unprotected: bool = False
    inherited_unprotected: frozenset[str] = frozenset()
    ancestors: frozenset[str] = frozenset()
    run_is_struck: bool = False
    excluded_runs: int = 0
    recut_texts: Mapping[str, set[str]] = field(default_factory=dict)
    corpus: str | None = None

    @property
    def private(self) -> tuple[OdometerEntry, ...]:
        """Those whose noise protects, and whose promise nothing voids."""
        return tuple(
            e for e in self.entries if e.protects and e.run not in self.inherited_unprotected
        )

    @property
    def runs(self) -> int:
        """How many were trained with protection."""
        return len(self.private)

    @property
    def unprotected(self) -> int:
        """How many were trained without, or from a model that had been, or are void."""
        return len(self.entries) - self.runs

    @property
    def unsaid(self) -> tuple[OdometerEntry, ...]:
        """Those with noise whose lines do not say whether anything voids what they promise."""
        return tuple(e for e in self.entries if e.events is not None and e.void is None)

    @property
    def leaving_out_repeats(self) -> int:
        """How many count too little where messages repeat."""
        return sum(e.leaves_out_repeats for e in self.entries if e.events is not None)

    def of_ancestors(self) -> SpentBudget:
        """What the weights that this run started from had spent: a part of it alone.

        Guarantee:
            What is said of one model alone counts what it is made of. Test:
            ``tests/release/test_earlier_runs.py::test_a_model_alone_holds_what_it_started_from``.
        """
        return replace(self, entries=tuple(e for e in self.entries if e.run in self.ancestors))

    @property
    def events(self) -> tuple[SampledGaussian, ...]:
        """All their events, in order."""
        return tuple(event for e in self.private for event in e.charged or ())

    def groups(self, unit: str, holds: Mapping[str, int]) -> tuple[int, ...]:
        """Of each of ``events``: how many of its data points change with one ``unit``.

        Another text may have been cut in another way, and each message of one ``unit`` be in a
        point of its own there, unless units are people whom both texts name and both give the same
        conversations and messages.

        Args:
            unit: Of the promise: "turn", "dialogue" or "user".
            holds: How many points of a smaller unit one ``unit`` holds at the most, if an earlier
                run does not say how many it held in its own text.

        Raises:
            ValueError: Neither says how many.

        Guarantee:
            Test: ``tests/release/test_texts_cut_otherwise.py::
            test_a_person_of_many_messages_is_as_many_points_where_the_text_was_cut_by_message``.
        """
        sizes = []
        for e in self.private:
            size = self._group_of(e, unit, holds)
            if size is None:
                raise ValueError(f"holds: must say how many {e.unit}s one {unit} holds")
            sizes += [size] * len(e.events or ())
        return tuple(sizes)

    def _group_of(self, e: OdometerEntry, unit: str, holds: Mapping[str, int]) -> int | None:
        """How many points of the run of ``e`` change with one ``unit``; None where nobody says."""
        is_smaller = PRIVACY_UNITS.index(e.unit) < PRIVACY_UNITS.index(unit)
        size = e.about.get(unit, {}).get(e.unit, holds.get(e.unit)) if is_smaller else 1
        if unit != "turn" and e.corpus in self.recut_texts.get(unit, ()):
            turns = holds.get("turn")
            return max(size, turns) if size and turns else None
        return size

    def holds(self, unit: str) -> dict[str, int]:
        """How many points of a smaller unit one ``unit`` holds, as its own runs say."""
        every = (e.holds for e in self.private if e.unit == unit)
        return {name: size for held in every for name, size in held.items()}

    @property
    def elsewhere(self) -> tuple[OdometerEntry, ...]:
        """Those with protection on other text."""
        return tuple(e for e in self.private if self.corpus not in (None, e.corpus))

    def of_another_law(self, screening: str, law: str | None) -> tuple[OdometerEntry, ...]:
        """Those on this text whose rates were bounded on labels of another law than ``law``; where
        that is None, than of the first. One of the ``screening`` of this run has its rates."""
        here = [e for e in self.private if e.law and e not in self.elsewhere]
        law = law or next((e.law for e in here), None)
        return tuple(e for e in here if e.law != law and e.screening != screening)

    def of_smaller_points(self, unit: str, holds: Mapping[str, int]) -> tuple[OdometerEntry, ...]:
        """Those of whose points one ``unit`` of this run is several (:meth:`groups`)."""
        return tuple(e for e in self.private if self._group_of(e, unit, holds) != 1)

    def rates(
        self,
        screening: str,
        gamma: float,
        delta2: float,
        law: str | None = None,
        *,
        unit: str = "turn",
        holds: Mapping[str, int] | None = None,
    ) -> tuple[float, float]:
        """gamma and delta2 of all runs and of one more.

        A secret counts where any screening passes it over (union bound); runs of one screening read
        the same text, so they count once.

        Args:
            screening: Of the one more, by its hash.
            gamma: Its trace rate.
            delta2: Its public rate.
            law: By which its labels were drawn (:func:`confide.odometer_lines.draw_law`); None: by
                that of the earlier runs.
            unit: Of the promise: "turn", "dialogue" or "user".
            holds: How many points of each smaller unit one ``unit`` holds at the most.

        Returns:
            Both rates, each at most 1.

        Guarantee:
            A rate that was measured on another text, by another law, or on smaller points, bounds
            nothing here: what was missed there may be just the secrets of this text, and of a
            secret that is said in ten messages one may have been passed over, whoever it is. So
            there all of them leave a trace, and all were learned without noise if any were. Tests:
            ``tests/release/test_rates_of_another_text.py::
            test_no_trace_rate_of_another_text_is_counted_on``,
            ``tests/release/test_rates_of_smaller_points.py::
            test_a_rate_of_messages_bounds_nothing_of_conversations``.
        """
        unknown = (
            *self.elsewhere,
            *self.of_another_law(screening, law),
            *self.of_smaller_points(unit, holds or {}),
        )
        worst = {screening: (gamma, delta2)}
        for e in self.private:
            if e.screening == screening and law and e.law != law and e not in unknown:
                continue
            g, d = worst.get(e.screening, (0.0, 0.0))
            trace, public = (1.0, float(e.delta2 > 0)) if e in unknown else (e.gamma, e.delta2)
            worst[e.screening] = max(g, trace), max(d, public)
        traces, public = (min(1.0, sum(rates)) for rates in zip(*worst.values(), strict=True))
        return traces, public


def sum_spending(
    entries: Sequence[OdometerEntry],
    *,
    run: str | None = None,
    others: Sequence[OdometerEntry] = (),
    bases: Iterable[str] = (),
) -> SpentBudget:
    """What was spent by all runs on a text, or by those before one of them.

    Args:
        entries: Lines of the odometer, with those that the registry adds, in order.
        run: Count what started before this run last did: one that went on may hold what others
            learned in between. All runs if None.
        others: Lines of other texts, for models that came by way of one.
        bases: Hashes of a model from which a run would start that has no line yet.

    Returns:
        The last line of each run that counts. A run of which two models are known counts for each.

    Guarantee:
        A struck run does not count, unless it was struck without a reason, or one that counts
        started from its model: that one shows what it had learned. Test: ``tests/accounting/
        test_odometer.py::test_what_a_model_started_from_counts_though_it_was_struck``.
    """
    every = (*entries, *others)
    earlier = {e.run for e in entries[: _last_start(entries, run)]} - {run}
    last_line = {e.run: e for e in entries if e.run in earlier}  # what became of it later, too
    second_models = _lines_of_second_models(entries, earlier)
    ancestors = ancestor_runs(every, {run} if run else set(), bases)

    standing = {e.run for e in last_line.values() if e.state != "struck" or not e.because}
    of_other_text = {e.run: e for e in others if e.run not in last_line}.values()
    alive = standing | {e.run for e in of_other_text if e.state != "struck"}
    shown = ancestors | ancestor_runs(every, alive)  # by a model that started from theirs
    counted = standing | (shown & set(last_line)) | {e.run for e in second_models}

    unprotected = {e.run for e in entries if not e.protects}
    heirs = {name for name in counted if unprotected & {name, *ancestor_runs(every, {name})}}
    return SpentBudget(
        (*(e for e in last_line.values() if e.run in counted), *second_models),
        base_unprotected=bool(unprotected & ancestors),
        inherited_unprotected=frozenset(heirs),
        ancestors=frozenset(ancestors),
        run_is_struck=any(e.run == run and e.state == "struck" for e in every),
        excluded_runs=len(set(last_line) - counted),
    )


def _lines_of_second_models(
    entries: Sequence[OdometerEntry], runs: set[str]
) -> list[OdometerEntry]:
    """A line for each further model of a run that was finished more than once."""
    finished = [e for e in entries if e.run in runs and e.state == "finished"]
    last_model = {e.run: e.model for e in finished}
    return list({(e.run, e.model): e for e in finished if e.model != last_model[e.run]}.values())


def _last_start(entries: Sequence[OdometerEntry], run: str | None) -> int:
    """The place of the last line that says that ``run`` starts, or goes on; the end, if none."""
    ours = (n for n, e in enumerate(entries) if e.run == run and e.state == "started")
    return max(ours, default=len(entries))


def ancestor_runs(
    entries: Sequence[OdometerEntry], runs: set[str], bases: Iterable[str] = ()
) -> set[str]:
    """The runs from whose models ``runs`` started, or one from ``bases``, at any remove: a model
    is known by the hash of its file and by that of the numbers in it, which stays when it is saved
    again."""
    ancestors, hashes, descendants = set[str](), set(bases), runs
    while descendants or hashes:
        of_bases = ((e.base, e.base_tensors) for e in entries if e.run in descendants)
        hashes |= {sha for pair in of_bases for sha in pair if sha}
        parents = {e.run for e in entries if {e.model, e.tensors} & hashes} - ancestors
        ancestors, descendants, hashes = ancestors | parents, parents, set()
    return ancestors


def report_spending(history: SpendingHistory, *, delta: float) -> dict[str, Any]:
    """What is known of a text, as JSON: each run with its own epsilon at ``delta``, and all that
    count together, for the largest unit among them. Infinite is "inf", no protection null, as of
    a run that is void."""
    check_delta(delta)
    last = {e.run: e for e in history.entries}
    whole = history.spent()
    unit = max((e.unit for e in whole.private), key=PRIVACY_UNITS.index, default=PRIVACY_UNITS[0])

    def epsilon(events: Sequence[SampledGaussian], groups: events.GroupSizes) -> float | str:
        value = privacy_cost.epsilon(
            events, delta=delta, neighbouring_relation="replace", group=groups
        )
        return "inf" if math.isinf(value) else math.ceil(value * 1000) / 1000

    names = ("entry", "time", "state", "method", "unit", "model", "because")
    counted = {e.run for e in whole.private}
    uncounted = {e.run for e in whole.entries} - counted

    def own_epsilon(e: OdometerEntry) -> float | str | None:
        protects = e.run in counted or (e.protects and e.run not in uncounted)
        return epsilon(e.charged, 1) if protects and e.charged is not None else None

    rows = [
        {name: getattr(e, name) for name in names}
        | {"epsilon": own_epsilon(e), "void_because": list(e.void or ())}
        for e in last.values()
    ]
    holds = whole.holds(unit)
    gamma, delta2 = whole.rates("", 0.0, 0.0, unit=unit, holds=holds)
    together = epsilon(whole.events, whole.groups(unit, holds)) if whole.events else 0.0
    if whole.unprotected:
        together, gamma, delta2 = "inf", 1.0, 1.0
    return {
        "unit": unit,
        "delta": delta,
        "runs": rows,
        "together": {"epsilon": together, "gamma": gamma, "delta2": delta2},
        "leave_out_repeats": whole.leaving_out_repeats,
        "unsaid": len(whole.unsaid),
    }
