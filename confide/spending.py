"""What earlier trainings on a text have spent, and which of them do not count."""

from __future__ import annotations

import itertools
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
    """What is known about the trainings on a text.

    ``entries`` are the lines of its odometer and, from the registry, those of runs on text with the
    same conversations, people or messages. ``others`` are the registry's lines for any text, needed
    for what a model started from. ``recut_texts``, by unit ("dialogue" or "user"), are texts that
    may have been divided into other conversations or people than this text, whose hash is
    ``corpus_sha256``."""

    entries: tuple[OdometerEntry, ...]
    others: tuple[OdometerEntry, ...] = ()
    recut_texts: Mapping[str, set[str]] = field(default_factory=dict)
    corpus_sha256: str | None = None

    def spent(self, run: str | None = None, bases: Iterable[str] = ()) -> SpentBudget:
        """What was spent by all runs, or only by those that started before ``run``. ``bases``:
        hashes of the model that a run without a line yet would start from."""
        known = sum_spending(self.entries, run=run, others=self.others, bases=bases)
        return replace(known, recut_texts=self.recut_texts, corpus_sha256=self.corpus_sha256)


def read_odometer_history(
    folder: str | os.PathLike[str], registry: Registry | None, run: str | None = None
) -> SpendingHistory:
    """The lines of an odometer, and those that the registry adds: for runs that the odometer lacks,
    or of which the registry has more lines. If the registry knows when ``run`` last started, only
    runs that started earlier are added."""
    own_entries = read_entries(folder)
    corpus_sha256 = read_corpus_hash(Path(folder)) or ""
    if registry is None:
        return SpendingHistory(tuple(own_entries), corpus_sha256=corpus_sha256)
    every = registry.entries()
    related = registry.find_related_texts(corpus_sha256)
    earlier = {e.run for e in every[: _last_start(every, run)] if e.corpus in related} - {run}

    lines_here, lines_there = Counter(e.run for e in own_entries), Counter(e.run for e in every)
    missing = {name for name in earlier if not lines_here[name]}
    # A process was killed between writing the two ledgers: only the registry has its last line.
    behind = {name for name in earlier - missing if lines_here[name] < lines_there[name]}
    before_own = [e for e in every if e.run in missing]
    after_own = [e for e in every if e.run in behind]

    other_texts = {text for text in related if related[text]}  # all but this one
    of_other_people = {text for text in other_texts if not _has_same_people(related[text])}
    cut_otherwise = {"dialogue": other_texts, "user": of_other_people}
    entries = (*before_own, *own_entries, *after_own)
    return SpendingHistory(entries, tuple(every), cut_otherwise, corpus_sha256)


def read_history_beside_corpus(
    corpus_path: str | os.PathLike[str], corpus_sha256: str, registry: Registry
) -> SpendingHistory:
    """What is known about the text in a file or folder, from the odometer beside it, if there is
    one, and from the registry. No odometer is created."""
    return read_history_if_present(
        find_odometer(corpus_path, corpus_sha256), corpus_sha256, registry
    )


def read_history_if_present(
    folder: Path, corpus_sha256: str, registry: Registry, run: str | None = None
) -> SpendingHistory:
    """:func:`read_odometer_history` for the text with this hash, whose odometer need not exist yet;
    none is created."""
    with tempfile.TemporaryDirectory() as new:
        if not folder.is_dir():
            folder = Path(new) / "odometer"
            prepare_odometer(folder, corpus_sha256)
        return read_odometer_history(folder, registry, run)


def _has_same_people(shared: Counter[str]) -> bool:
    """Whether two texts name the same people, given how many units of each kind they ``shared``:
    both name all their people, and every conversation and message found in both has exactly the
    same people in each. The answer is no if the texts cannot be compared, because one was entered
    by an older crtlib, is too large, or is what a screening left.

    Guarantee:
        A message is compared even if one of the texts has a second person for it. Test:
        ``tests/release/test_same_people.py::test_a_second_speaker_makes_nobody_the_same``.
    """
    same = shared["talk"] == shared["owners"] and shared["spoken"] == shared["speakers"]
    return bool(shared["compared"]) and same


@dataclass(frozen=True)
class SpentBudget:
    """What earlier runs have spent: the last line of each, without those that were struck.

    ``base_unprotected``: the weights that this run started from had learned the text without
    protection, or with a promise that is void. ``inherited_unprotected``: the runs of which that is
    true, or that descend from such a run. ``ancestors``: the runs from whose models this one
    descends. ``run_is_struck``: this run was struck. ``excluded_runs``: how many runs do not count
    because they were struck. ``recut_texts``: texts that may have been divided into other
    conversations or people than this text, whose hash is ``corpus_sha256`` (None: all runs are on
    one text)."""

    entries: tuple[OdometerEntry, ...]
    base_unprotected: bool = False
    inherited_unprotected: frozenset[str] = frozenset()
    ancestors: frozenset[str] = frozenset()
    run_is_struck: bool = False
    excluded_runs: int = 0
    recut_texts: Mapping[str, set[str]] = field(default_factory=dict)
    corpus_sha256: str | None = None

    @property
    def private(self) -> tuple[OdometerEntry, ...]:
        """The runs whose noise protects and whose promise nothing voids."""
        return tuple(
            e for e in self.entries if e.protects and e.run not in self.inherited_unprotected
        )

    @property
    def protected_run_count(self) -> int:
        """How many runs were trained with protection."""
        return len(self.private)

    @property
    def unprotected_run_count(self) -> int:
        """How many runs were trained without protection, started from a model that had been, or are
        void."""
        return len(self.entries) - self.protected_run_count

    @property
    def runs_without_verdict(self) -> tuple[OdometerEntry, ...]:
        """The runs with noise whose lines do not state whether anything voids their promise."""
        return tuple(e for e in self.entries if e.events is not None and e.void is None)

    @property
    def leaving_out_repeats(self) -> int:
        """How many runs count too little where messages repeat."""
        return sum(e.leaves_out_repeats for e in self.entries if e.events is not None)

    def of_ancestors(self) -> SpentBudget:
        """The part of this that was spent on the weights from which this run started.

        Guarantee:
            What is stated for one model alone includes the models that it was made from. Test:
            ``tests/release/test_earlier_runs.py::test_a_model_alone_holds_what_it_started_from``.
        """
        return replace(self, entries=tuple(e for e in self.entries if e.run in self.ancestors))

    @property
    def events(self) -> tuple[SampledGaussian, ...]:
        """All events of the private runs, in order."""
        return tuple(event for e in self.private for event in e.charged or ())

    def groups(self, unit: str, holds: Mapping[str, int]) -> tuple[int, ...]:
        """For each of ``events``, how many of its data points change with one ``unit``.

        Another text may have been divided differently, so that each message of one ``unit`` is in a
        point of its own there. The exception is a unit of people whom both texts name and to whom
        both give the same conversations and messages.

        Args:
            unit: The unit of the promise: "turn", "dialogue" or "user".
            holds: The largest number of points of each smaller unit in one ``unit``, for earlier
                runs that do not state that number for their own text.

        Raises:
            ValueError: If neither an earlier run nor ``holds`` states the number.

        Guarantee:
            Test: ``tests/release/test_texts_cut_otherwise.py::
            test_a_person_of_many_messages_is_as_many_points_where_the_text_was_cut_by_message``.
        """
        sizes = []
        for entry in self.private:
            size = self._group_of(entry, unit, holds)
            if size is None:
                raise ValueError(f"holds: must say how many {entry.unit}s one {unit} holds")
            sizes += [size] * len(entry.events or ())
        return tuple(sizes)

    def _group_of(self, entry: OdometerEntry, unit: str, holds: Mapping[str, int]) -> int | None:
        """How many points of the run of ``entry`` change with one ``unit``; None if unknown."""
        is_smaller = PRIVACY_UNITS.index(entry.unit) < PRIVACY_UNITS.index(unit)
        size = entry.about.get(unit, {}).get(entry.unit, holds.get(entry.unit)) if is_smaller else 1
        if unit != "turn" and entry.corpus in self.recut_texts.get(unit, ()):
            turns = holds.get("turn")
            return max(size, turns) if size and turns else None
        return size

    def holds(self, unit: str) -> dict[str, int]:
        """The most points of each smaller unit that one ``unit`` holds, of what any run states."""
        largest: dict[str, int] = {}
        for entry in self.private:
            stated = (entry.about.get(unit, {}), entry.holds if entry.unit == unit else {})
            sizes = itertools.chain.from_iterable(by_unit.items() for by_unit in stated)
            for smaller_unit, size in sizes:
                largest[smaller_unit] = max(size, largest.get(smaller_unit, 0))
        return largest

    @property
    def runs_on_other_texts(self) -> tuple[OdometerEntry, ...]:
        """The private runs on other texts."""
        return tuple(e for e in self.private if self.corpus_sha256 not in (None, e.corpus))

    def of_another_law(self, screening: str, law: str | None) -> tuple[OdometerEntry, ...]:
        """The private runs on this text whose rates were bounded on labels drawn by another law
        than ``law`` (None: than the law of the first of these runs). Runs with this run's
        ``screening`` are left out: their rates are the same."""
        entries_here = [e for e in self.private if e.law and e not in self.runs_on_other_texts]
        law = law or next((e.law for e in entries_here), None)
        return tuple(e for e in entries_here if e.law != law and e.screening != screening)

    def of_smaller_points(self, unit: str, holds: Mapping[str, int]) -> tuple[OdometerEntry, ...]:
        """The private runs in which one ``unit`` is several data points, or an unknown number
        (:meth:`groups`)."""
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
        """gamma and delta2 of all private runs and one further run together.

        A secret counts if any screening passes it over (union bound). Runs with the same screening
        read the same text, so they count once.

        Args:
            screening: The hash of the further run's screening.
            gamma: Its trace rate.
            delta2: Its public rate.
            law: The law by which its labels were drawn (:func:`confide.odometer_lines.draw_law`);
                None: the law of the earlier runs.
            unit: The unit of the promise: "turn", "dialogue" or "user".
            holds: The largest number of points of each smaller unit in one ``unit``.

        Returns:
            Both rates, each at most 1.

        Guarantee:
            A rate that was measured on another text, under another law, or on smaller points bounds
            nothing here. What was missed there may be exactly the secrets of this text; and if a
            secret occurs in ten messages, one of them may have been passed over, for every secret.
            For such a run all secrets count as leaving a trace, and all count as learned without
            noise if any were. Tests:
            ``tests/release/test_rates_of_another_text.py::
            test_no_trace_rate_of_another_text_is_counted_on``,
            ``tests/release/test_rates_of_smaller_points.py::
            test_a_rate_of_messages_bounds_nothing_of_conversations``.
        """
        unknown = (
            *self.runs_on_other_texts,
            *self.of_another_law(screening, law),
            *self.of_smaller_points(unit, holds or {}),
        )
        worst = {screening: (gamma, delta2)}
        for entry in self.private:
            if entry.screening == screening and law and entry.law != law and entry not in unknown:
                continue
            earlier_trace, earlier_public = worst.get(entry.screening, (0.0, 0.0))
            trace, public = entry.gamma, entry.delta2
            if entry in unknown:
                trace = 1.0
                public = float(entry.delta2 > 0)
            worst[entry.screening] = max(earlier_trace, trace), max(earlier_public, public)
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
        run: Count the runs that started before the last start of this one, which may have resumed
            and then hold what others learned in between. None: count all runs.
        others: Lines for other texts, for models that descend from a model trained on one.
        bases: Hashes of the model that a run without a line yet would start from.

    Returns:
        The last line of each run that counts. A run with two known models counts once for each.

    Guarantee:
        A struck run does not count, unless it was struck without a reason or a run that counts
        started from its model, and so shows what that had learned. Test: ``tests/accounting/
        test_odometer.py::test_what_a_model_started_from_counts_though_it_was_struck``.
    """
    every = (*entries, *others)
    earlier = {e.run for e in entries[: _last_start(entries, run)]} - {run}
    # A run's last line counts, even if it was entered later.
    last_line = {e.run: e for e in last_lines(entries) if e.run in earlier}
    second_models = _lines_of_second_models(entries, earlier)
    ancestors = ancestor_runs(every, {run} if run else set(), bases)

    standing = {e.run for e in last_line.values() if e.state != "struck" or not e.because}
    of_other_text = {e.run: e for e in others if e.run not in last_line}.values()
    alive = standing | {e.run for e in of_other_text if e.state != "struck"}
    shown = ancestors | ancestor_runs(every, alive)  # by a model that descends from theirs
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


def last_lines(entries: Iterable[OdometerEntry]) -> list[OdometerEntry]:
    """The last line of each run, with the most steps that any of its lines states: a step that was
    once entered may have been taken, whatever a later line says.

    Guarantee:
        Test: ``tests/accounting/test_odometer.py::test_no_later_line_of_a_run_says_less``.
    """
    lines_by_run: dict[str, list[OdometerEntry]] = {}
    for entry in entries:
        lines_by_run.setdefault(entry.run, []).append(entry)
    return [
        lines[-1] if lines[-1].events is None else replace(lines[-1], events=most_steps(lines))
        for lines in lines_by_run.values()
    ]


def most_steps(lines: Sequence[OdometerEntry]) -> tuple[SampledGaussian, ...]:
    """The events of the last of these lines of a run that states some, with further steps of each
    kind where another line states more."""
    stated = [e.events for e in lines if e.events is not None]
    sampled = list(stated[-1]) if stated else []
    for line in stated:
        steps_so_far = events.count_private_steps(sampled)
        for (noise, probability), steps in events.count_private_steps(line).items():
            if (more := steps - steps_so_far.get((noise, probability), 0)) > 0:
                sampled.append(SampledGaussian(probability, noise, more))
    return tuple(sampled)


def _lines_of_second_models(
    entries: Sequence[OdometerEntry], runs: set[str]
) -> list[OdometerEntry]:
    """A line for each additional model of a run that was finished more than once."""
    finished = [e for e in entries if e.run in runs and e.state == "finished"]
    last_model = {e.run: e.model for e in finished}
    return list({(e.run, e.model): e for e in finished if e.model != last_model[e.run]}.values())


def _last_start(entries: Sequence[OdometerEntry], run: str | None) -> int:
    """The index of the last line in which ``run`` starts or resumes; the number of lines if there
    is none."""
    ours = (n for n, e in enumerate(entries) if e.run == run and e.state == "started")
    return max(ours, default=len(entries))


def ancestor_runs(
    entries: Sequence[OdometerEntry], runs: set[str], bases: Iterable[str] = ()
) -> set[str]:
    """The runs from whose models ``runs``, or a run that starts from ``bases``, descend. A model is
    recognized by the hash of its file or by that of the numbers in it, which does not change when
    it is saved again."""
    ancestors, hashes, descendants = set[str](), set(bases), runs
    while descendants or hashes:
        of_bases = ((e.base, e.base_tensors) for e in entries if e.run in descendants)
        hashes |= {sha for pair in of_bases for sha in pair if sha}
        parents = {e.run for e in entries if {e.model, e.tensors} & hashes} - ancestors
        ancestors, descendants, hashes = ancestors | parents, parents, set()
    return ancestors


def report_spending(history: SpendingHistory, *, delta: float) -> dict[str, Any]:
    """What is known about a text, as JSON: each run with its own epsilon at ``delta``, and what all
    runs that count come to together, for the largest unit among them. Infinity is "inf"; the
    epsilon of a run without protection, or of a void one, is null."""
    check_delta(delta)
    last_line_by_run = {entry.run: entry for entry in last_lines(history.entries)}
    whole = history.spent()
    unit = max(
        (entry.unit for entry in whole.private), key=PRIVACY_UNITS.index, default=PRIVACY_UNITS[0]
    )

    def epsilon(events: Sequence[SampledGaussian], groups: events.GroupSizes) -> float | str:
        value = privacy_cost.epsilon(
            events, delta=delta, neighbouring_relation="replace", group=groups
        )
        return "inf" if math.isinf(value) else math.ceil(value * 1000) / 1000

    names = ("entry", "time", "state", "method", "unit", "model", "because")
    counted = {entry.run for entry in whole.private}
    uncounted = {entry.run for entry in whole.entries} - counted

    def own_epsilon(entry: OdometerEntry) -> float | str | None:
        protects = entry.run in counted or (entry.protects and entry.run not in uncounted)
        return epsilon(entry.charged, 1) if protects and entry.charged is not None else None

    rows = [
        {name: getattr(entry, name) for name in names}
        | {"epsilon": own_epsilon(entry), "void_because": list(entry.void or ())}
        for entry in last_line_by_run.values()
    ]
    holds = whole.holds(unit)
    gamma, delta2 = whole.rates("", 0.0, 0.0, unit=unit, holds=holds)
    together = epsilon(whole.events, whole.groups(unit, holds)) if whole.events else 0.0
    if whole.unprotected_run_count:
        together, gamma, delta2 = "inf", 1.0, 1.0
    return {
        "unit": unit,
        "delta": delta,
        "runs": rows,
        "together": {"epsilon": together, "gamma": gamma, "delta2": delta2},
        "leave_out_repeats": whole.leaving_out_repeats,
        "unsaid": len(whole.runs_without_verdict),
    }
