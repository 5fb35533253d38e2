"""Find a plan that meets an officer's limits, or state what is missing.

Each pair of policies is judged by labels and prepared just as ``crtlib train --labels`` would do,
so the bounds in a row are those that its certificate will have. All pairs that were tried are
charged in all rows, because whoever takes the best of many chooses by these labels.
"""

from __future__ import annotations

import functools
import itertools
import math
import shlex
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confide import odometer, spending
from confide.labels import label_tasks
from confide.release import file_sources, limits, rate_bounds
from confide.reports import html
from confide.screening.corpus_screening import default_policy
from confide.screening.screened_rates import stored_rates
from confide.training import (
    odometer_run,
    record_sources,
    study_of_text,
    training_of_study,
    training_record,
)
from crtlib.arguments import argument, argument_error
from crtlib.files import StrPath
from crtlib.intervals import at_most, count_of, round_up_to_figures
from crtlib.screening.policy_names import is_from_file
from crtlib.screening.rate_values import (
    RATE_NAMES,
    RATES_ALPHA,
    PolicyRates,
    Rate,
    map_rates,
    rate_upper_bound,
    rates_from_json,
)
from crtlib.studies import crt_study, study_data
from crtlib.studies.crt_study import CrtStudy
from crtlib.studies.study_data import PreparedData
from crtlib.training import schedules

TRIED_EPSILONS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""The noise levels that are tried, by the epsilon of one data point in clear."""
CHOICE_NOTE = (
    "which plan is advised follows from the text without noise: a certificate treats its settings "
    "as known"
)
LABEL_MULTIPLES = tuple(1.05**k for k in range(1, 120))
"""The factors by which the number of labels is imagined to grow, if there are too few."""


@dataclass(frozen=True)
class AdviceRow:
    """A pair of policies with the least noise that meets the limits (or, if none does, with the
    most that was tried), and the bounds that its certificate will have."""

    policy: str
    conservative: str
    unit: str
    meets_limits: bool
    epsilon: float
    noise_multiplier: float
    private_share: float
    """The share of points that are private."""
    masked_share: float
    """The share of characters that are masked."""
    rates: Mapping[str, Any]
    judged_limits: Sequence[Mapping[str, Any]]
    """Each limit, with the bound that is certified and whether it meets the limit."""
    largest_guess_chance: float
    """The largest chance that a guess is right, in [0, 1]."""
    turns_to_read: int | None
    """How many turns must be read in all until it meets the limits, if the policies keep failing as
    often as on these labels; None if even one turn from each person would not be enough."""
    tried_epsilons: Sequence[Mapping[str, Any]] = ()
    """For each of :data:`TRIED_EPSILONS`: the noise, the guess, the judged limits, and whether all
    are met, as JSON has them."""
    void_reasons: Sequence[str] = ()
    """Why its certificate would be void."""

    def to_json(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {
            "policy": self.policy,
            "conservative": self.conservative,
            "unit": self.unit,
            "meets": self.meets_limits,
            "epsilon": self.epsilon,
            "noise": self.noise_multiplier,
            "private": self.private_share,
            "redacted": self.masked_share,
            "rates": self.rates,
            "judged": self.judged_limits,
            "guess": self.largest_guess_chance,
            "read": self.turns_to_read,
            "tried": self.tried_epsilons,
            "void": self.void_reasons,
        }


@dataclass(frozen=True)
class Advice:
    """The ``rows``, which of them is advised (None: none meets the limits), and why. ``turns`` is
    how many turns were drawn, each from a different one of the text's ``people``, or of what
    ``owners`` names; ``pairs`` is how many pairs of policies these labels have judged."""

    rows: tuple[AdviceRow, ...]
    best: int | None
    why: str
    commands: tuple[str, ...]
    turns: int
    people: int
    pairs: int
    owners: str = "people"

    def json(self) -> dict[str, Any]:
        """The advice as one JSON object, schema ``crtlib/advice/1``."""
        rows = tuple(row.to_json() for row in self.rows)
        return {
            "schema": "crtlib/advice/1",
            "ok": self.best is not None,
            **asdict(self),
            "rows": rows,
        }

    def text(self) -> str:
        """The advice for a terminal, at most 80 columns wide where names allow."""
        head = f"{'':4}{'private':>8}{'redacted':>9}{'trace':>9}{'public':>9}"
        lines = [f"{head}{'epsilon':>9}{'noise':>7}{'guess':>7}{'read':>8}  limits"]
        for number, row in enumerate(self.rows, 1):
            trace, public = (
                round_up_to_figures(100 * row.rates[name]["upper"]) for name in ("trace", "public")
            )
            guess = round_up_to_figures(100 * row.largest_guess_chance)
            to_read = "-" if row.turns_to_read is None else f"{row.turns_to_read:,}"
            lines.append(
                f"{number:<4}{100 * row.private_share:>6.1f} %{100 * row.masked_share:>7.1f} %"
                f"{trace:>7} %{public:>7} %{row.epsilon:>9g}{row.noise_multiplier:>7.3g}"
                f"{guess:>7}{to_read:>8}  {'met' if row.meets_limits else 'not met'}"
            )
        lines += [
            f"{number}   {row.policy}, then {row.conservative}; a point is a {row.unit}"
            for number, row in enumerate(self.rows, 1)
        ]
        turns = count_of(self.turns, "turn", "turns")
        pairs = count_of(self.pairs, "pair", "pairs")
        lines += [
            f"labels: {turns}, each from a different one of the text's {self.people:,} "
            f"{self.owners};",
            f"        they have judged {pairs}, and all are charged",
        ]
        note = [] if self.best is None else [CHOICE_NOTE]
        return "\n".join([*lines, self.why, *note, *self.commands])

    def page(self) -> str:
        """A page with the rows, and a plot of each row's guess over :data:`TRIED_EPSILONS`."""
        return html.render_template(
            "advise.html.j2",
            a=self,
            seconds=label_tasks.SECONDS_PER_TURN,
            log10=math.log10,
            choice=CHOICE_NOTE,
        )


def _owners_of_turns(label_facts: Mapping[str, Any]) -> str:
    """The word for those from whom one turn each was drawn: people or conversations."""
    return {"user": "people", "dialogue": "conversations"}[str(label_facts["by"])]


def advise_on_limits(
    corpus: StrPath,
    labels: StrPath,
    require: Sequence[str],
    *,
    policies: Sequence[str] = (),
    conservative: Sequence[str] = ("cautious", "everything"),
    units: Sequence[str] = ("turn",),
    hours: float = 0.0,
    trials: int = 1,
    **settings: Any,
) -> Advice:
    """Find which policies and how much noise meet some limits, at what cost, or what is missing.

    Args:
        corpus: The text, a file or a folder.
        labels: A folder of ``crtlib label`` that somebody has read; it counts the pairs it judges.
        require: Limits, as for ``crtlib certify --require``.
        policies: The policies to try; by default the corpus's own, if it has one.
        conservative: Conservative policies; each policy is tried with each of these.
        units: Units; each such pair is tried with each of these.
        hours: How many more hours people can read.
        trials: How many trainings will be compared, each of which is charged.
        settings: Fields of a training (:class:`confide.recipes.Crt`), such as ``epochs`` or
            ``init``.

    Returns:
        A row for each pair and unit, which of them is best, and commands that carry it out, or that
        draw the labels that are missing.

    Raises:
        ValueError: For malformed limits, and for what cannot be judged or trained on.

    Guarantee:
        What is stated about a plan, limit by limit, is what its certificate states once it is
        carried out: both combine the same sources. Test: ``tests/release/test_advise.py::
        test_what_is_said_of_a_plan_is_said_by_its_certificate``.
    """
    if not require:
        raise argument_error("require", "is missing; give 'public <= 1%' or another limit")
    limits.judge_limits({"verdict": "none"}, require)  # refuses a malformed limit
    label_facts = label_tasks.read_label_facts(labels)
    turns, people = int(label_facts["judge"]), int(label_facts["users"])
    pairs_and_units = [
        (policy, conservative_policy, unit)
        for policy in policies or [default_policy(corpus)]
        for conservative_policy in conservative
        for unit in units
    ]
    given = {name: value for name, value in settings.items() if value is not None}
    tried: list[tuple[CrtStudy, PreparedData]] = []
    for policy, conservative_policy, unit in dict.fromkeys(pairs_and_units):
        fields = {**given, "policy": policy, "conservative": conservative_policy, "unit": unit}
        study = study_of_text.build_study(corpus, **fields)
        prepared = study_data.prepare_data(study, known=stored_rates(study.corpus))
        tried.append(
            (
                study_of_text.choose_hyperparameters_by_size(study, prepared, given),
                training_of_study.attach_label_rates(study, prepared, labels),
            )
        )
    pairs = max(prepared.labels["judged"] for _, prepared in tried if prepared.labels)
    rows = tuple(
        _advise_on_pair(study, prepared, pairs, require, turns, people, trials)
        for study, prepared in tried
    )
    best = max(
        (index for index, row in enumerate(rows) if row.meets_limits),
        key=lambda index: _text_kept_for_its_noise(rows[index]),
        default=None,
    )
    commands: list[list[str]] = []
    if best is not None:
        why = f"plan {best + 1}: keeps the most text for its noise"
        commands = _commands_of_plan(rows[best], corpus, labels, require, trials, given)
    else:
        why, needed_turns = _explain_unmet(rows, label_facts, hours)
        if needed_turns:
            draw = ["--turns", str(needed_turns)]
            draw += _options_of_a_like_draw(label_facts, pairs_and_units)
            folder = _find_free_name("more-labels")
            commands = [["label", "sample", str(corpus), *draw, "--out", folder]]
    lines = tuple(shlex.join(["crtlib", *words]) for words in commands)
    return Advice(rows, best, why, lines, turns, people, pairs, _owners_of_turns(label_facts))


def _commands_of_plan(
    row: AdviceRow,
    corpus: StrPath,
    labels: StrPath,
    require: Sequence[str],
    trials: int,
    given: Mapping[str, Any],
) -> list[list[str]]:
    """The commands that train by a plan and certify the model, each as the words after ``crtlib``.

    Args:
        row: The plan.
        corpus: The text.
        labels: The folder of labels that judges the policies.
        require: The limits of the certificate.
        trials: How many trainings will be compared.
        given: Fields of the training that the caller set.
    """
    options = {"policy": row.policy, "conservative": row.conservative, "labels": labels}
    options |= {"epsilon": f"{row.epsilon:g}", "unit": row.unit}
    options |= {"init": "random", **given}  # else a machine with a GPU chooses another model
    model_folder = _find_free_name("model")
    options |= {"trials": str(trials)} if trials > 1 else {}
    options |= {"out": model_folder}
    words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
    requirements = [("--require", limit) for limit in require]
    return [
        ["train", str(corpus), *itertools.chain(*words)],
        ["certify", model_folder, "--out", "certificate.html", *itertools.chain(*requirements)],
    ]


def _text_kept_for_its_noise(row: AdviceRow) -> float:
    """What the best plan has most of: text that is not masked, and points that are public, for
    little noise."""
    return (1 - row.masked_share) * (2 - row.private_share) / row.noise_multiplier


def _find_free_name(name: str) -> str:
    """A free name for a folder here: ``name``, or else the first of ``name-2``, ``name-3``..."""
    names = itertools.chain([name], (f"{name}-{k}" for k in itertools.count(2)))
    return next(candidate for candidate in names if not Path(candidate).exists())


def _options_of_a_like_draw(
    label_facts: Mapping[str, Any], pairs: Sequence[tuple[str, str, str]]
) -> list[str]:
    """Options of ``crtlib label sample`` that draw labels like those that judged these pairs of
    policies: by person or by conversation, with the same kinds, and with a new seal on custom files
    that the policies read.

    Guarantee:
        Test: ``tests/release/test_advise.py::
        test_the_draw_that_is_advised_judges_the_plans_that_asked_for_it``.
    """
    policy_parts = dict.fromkeys(
        part for pi, pi_c, _ in pairs for name in (pi, pi_c) for part in name.split("+")
    )
    custom_files = "+".join(filter(is_from_file, policy_parts))
    seal = ["--seal", custom_files] if custom_files else []
    return ["--by", str(label_facts["by"]), "--kinds", ",".join(label_facts["kinds"]), *seal]


@dataclass(frozen=True)
class _PairOnTrial:
    """A pair of policies whose promise is previewed at one noise after another: a function from an
    epsilon to the study, its data, the odometer with what was spent before, and the limits."""

    ready_study: Callable[[float], CrtStudy]
    prepared: PreparedData
    odometer: odometer_run.OdometerRun
    spent: spending.SpentBudget
    origin: Sequence[file_sources.FileSource]
    limits: Sequence[str]

    def at_epsilon(self, epsilon: float, rates: PolicyRates) -> dict[str, Any]:
        """The limits as the certificate of a training would judge them, whether all are met, and
        the largest chance of a right guess."""
        planned = self.ready_study(epsilon)
        prepared = replace(self.prepared, known=rates)
        phases = crt_study.schedule_phases(planned)
        event = schedules.combine_phase_events(phases)
        assert event is not None
        facts = {**self.odometer.facts, "gamma": rates.gamma, "delta2": rates.delta2}
        sources = record_sources.collect_sources_of_steps(
            planned, prepared, replace(self.odometer, run="this", facts=facts), [event], phases,
            private_updates=0, origin=self.origin,
        )  # fmt: skip
        content = training_record.facts_before_training(planned, prepared)
        promise, why = training_record.preview_promise(content, sources, self.odometer, self.spent)
        certificate = {
            "verdict": "void" if why else "holds",
            "rates": content["rates"],
            "spent_before": {"gamma": promise.gamma, "delta2": promise.delta2},
            "guarantee": promise.guarantee(),
            **promise.guesses(()),
        }
        judged = limits.judge_limits(certificate, self.limits)
        return {
            "epsilon": epsilon,
            "noise": planned.noise_multiplier,
            "guess": certificate["right_guess"][0]["at_most"],
            "judged": judged,
            "met": all(row["met"] for row in judged),
            "void": why,
        }


def _advise_on_pair(
    study: CrtStudy,
    prepared: PreparedData,
    pairs: int,
    require: Sequence[str],
    turns: int,
    people: int,
    trials: int,
) -> AdviceRow:
    """The advice on one pair of policies.

    Args:
        study: The training.
        prepared: What it reads, with the rates of the pair.
        pairs: How many pairs of policies the labels have judged.
        require: The limits.
        turns: How many turns were read, each from a different person.
        people: How many people the text has.
        trials: How many trainings will be compared.
    """
    rates = rates_from_json(prepared.rates.to_json(), policy_pairs=pairs)
    trial = _prepare_trial(study, replace(prepared, known=rates), require, trials)
    tried = [trial.at_epsilon(epsilon, rates) for epsilon in TRIED_EPSILONS]
    met_count = bisect_left(tried, True, key=lambda row: not row["met"])
    taken = tried[max(met_count - 1, 0)]
    turns_to_read: int | None = turns
    if not met_count:
        epsilon = taken["epsilon"]
        turns_to_read = _find_turns_to_read(trial, epsilon, prepared.rates, rates, turns, people)
    masked = sum(span.end - span.start for spans in prepared.flags for span in spans)
    points = prepared.prepared
    return AdviceRow(
        policy=study.policy,
        conservative=study.conservative,
        unit=study.unit,
        meets_limits=met_count > 0,
        epsilon=taken["epsilon"],
        noise_multiplier=taken["noise"],
        private_share=len(points.private) / max(1, points.points),  # as crtlib screen counts it
        masked_share=masked / max(1, sum(len(p.text) for p in prepared.points)),
        rates={name: getattr(rates, name).to_json() for name in RATE_NAMES},
        judged_limits=taken["judged"],
        largest_guess_chance=taken["guess"],
        turns_to_read=turns_to_read,
        tried_epsilons=tried,
        void_reasons=taken["void"],
    )


def _prepare_trial(
    study: CrtStudy, prepared: PreparedData, require: Sequence[str], trials: int
) -> _PairOnTrial:
    """A pair of policies with what was spent before on its text. No odometer is created for
    good."""
    rates = prepared.rates
    odometer_fields = odometer_run.odometer_fields(study.ready(), prepared)
    meter = odometer_run.open_odometer(
        study.corpus, odometer_fields, init=study.init, protects=True, trials=trials
    )
    with tempfile.TemporaryDirectory() as new:
        if not meter.folder.is_dir():
            meter = replace(meter, folder=Path(new) / "odometer")
            odometer.prepare_odometer(meter.folder, meter.facts["corpus"])
        labels = {**(prepared.labels or {}), "alpha": RATES_ALPHA, "judged": rates.policy_pairs}
        spent = rate_bounds.with_current_bounds(meter.spent, labels, meter.facts["corpus"])
        origin = meter.origin()
    ready_study = functools.cache(lambda epsilon: replace(study, epsilon=epsilon).ready())
    return _PairOnTrial(ready_study, prepared, meter, spent, origin, require)


def _find_turns_to_read(
    trial: _PairOnTrial,
    epsilon: float,
    counted: PolicyRates,
    rates: PolicyRates,
    turns: int,
    people: int,
) -> int | None:
    """How many turns of a new draw must be read until a pair of policies meets the limits, if the
    policies keep failing as often.

    Args:
        trial: The pair.
        epsilon: The noise.
        counted: The rates on the turns that were read.
        rates: The same rates, with bounds for all pairs that these turns judged.
        turns: How many turns were read, each from a different person.
        people: How many people the text has.

    Returns:
        The number of turns; None if one from each person would not be enough.
    """
    largest_growth = people / turns
    can_be_drawn = (*(m for m in LABEL_MULTIPLES if m < largest_growth), largest_growth)
    # A new draw also reaches those who taught a policy, whose labels do not count.
    judging_turns = max(1, turns - counted.left_out_points)
    counting_ratio = (1 - counted.left_out_clusters / people) * turns / judging_turns
    for growth in can_be_drawn:
        if trial.at_epsilon(epsilon, _rates_after_labels(rates, growth * counting_ratio))["met"]:
            return min(math.ceil(turns * growth), people)
    return None


def _rates_after_labels(rates: PolicyRates, growth: float) -> PolicyRates:
    """The rates that ``growth`` times as many counted labels would give, if policies failed as
    often as on these. They would be a new draw, which judges all pairs again."""

    def enlarged(counts: tuple[int, int]) -> tuple[int, int]:
        failures, judged_secrets = counts
        all_then = math.floor(judged_secrets * growth)
        return min(math.ceil(failures * growth), all_then), all_then

    def with_more_labels(rate: Rate) -> Rate:
        if rate.origin != "one_per_cluster":
            return rate
        failures, judged_secrets = enlarged((rate.failures, rate.judged_secrets))
        reread_counts = enlarged(rate.reread_counts) if rate.reread_counts else None
        return Rate(
            failures=failures,
            judged_secrets=judged_secrets,
            upper_bound=rate_upper_bound(
                failures, judged_secrets, reread_counts, alpha=rates.alpha / 2
            ),
            origin=rate.origin,
            labelled_counts=rate.labelled_counts,
            reread_counts=reread_counts,
        )

    return replace(rates, **map_rates(vars(rates), with_more_labels))


def _explain_unmet(
    rows: Sequence[AdviceRow], label_facts: Mapping[str, Any], hours: float
) -> tuple[str, int | None]:
    """Why no row meets the limits, and how many turns to draw if that would help."""
    if all(row.void_reasons for row in rows):
        return f"no plan has a promise; void: {' '.join(rows[0].void_reasons)}", None
    turns_by_row = [row.turns_to_read for row in rows if row.turns_to_read is not None]
    least_turns = min(turns_by_row, default=None)
    missing = " and ".join(_unmet_limits(rows))
    if least_turns is None:
        owners = f"{int(label_facts['users']):,} {_owners_of_turns(label_facts)}"
        return (
            f"none would meet the limits even if a turn of each of the {owners} were read: "
            f"{missing}; it takes better policies, or more {_owners_of_turns(label_facts)}"
        ), None
    # None of the turns of a new draw has been read.
    hours_needed = least_turns * label_tasks.SECONDS_PER_TURN / 3600
    why = (
        f"none meets the limits ({missing}): needs a separate draw of {least_turns:,} turns, "
        f"{math.ceil(10 * hours_needed) / 10:g} hours"
    )
    if hours_needed > hours:
        return f"{why}; {argument('hours')} allows {hours:g}", None
    return why, least_turns


def _unmet_limits(rows: Sequence[AdviceRow]) -> Iterator[str]:
    """Each limit that no row meets, with the smallest bound that is certified."""
    for judged in zip(*(row.judged_limits for row in rows), strict=True):
        if not any(row["met"] for row in judged):
            limit = judged[0]["limit"]
            every = [row["certified"] for row in judged if row["certified"] is not None]
            smallest = min(every, default=0)
            if limit.split()[0].rstrip("<=") in RATE_NAMES:
                least = at_most(100 * smallest, 3) + " %"
            else:
                least = at_most(smallest, 3)
            yield f"{limit}: {f'at least {least}' if every else 'nothing is certified'} here"
