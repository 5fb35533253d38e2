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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confide import odometer
from confide.labels import label_tasks as labelled
from confide.release import limits, rate_bounds
from confide.reports import html
from confide.screening.corpus import default_policy, stored_rates
from confide.training import (
    odometer_run,
    record_sources,
    study_of_text,
    train_on_corpus,
    training_record,
)
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
    meets: bool
    """Whether it meets the limits."""
    epsilon: float
    noise: float
    private: float
    """The share of points that are private."""
    redacted: float
    """The share of characters that are masked."""
    rates: Mapping[str, Any]
    judged: Sequence[Mapping[str, Any]]
    """Each limit, with the bound that is certified and whether it meets the limit."""
    guess: float
    """The largest chance that a guess is right, in [0, 1]."""
    read: int | None
    """How many turns must be read in all until it meets the limits, if the policies keep failing as
    often as on these labels; None if even one turn from each person would not be enough."""
    tried: Sequence[Mapping[str, Any]] = ()
    """For each of :data:`TRIED_EPSILONS`: the noise, the guess, the judged limits, and whether all
    are met."""
    void: Sequence[str] = ()
    """Why its certificate would be void."""


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
        return {"schema": "crtlib/advice/1", "ok": self.best is not None, **asdict(self)}

    def text(self) -> str:
        """The advice for a terminal, at most 80 columns wide where names allow."""
        head = f"{'':4}{'private':>8}{'redacted':>9}{'trace':>9}{'public':>9}"
        lines = [f"{head}{'epsilon':>9}{'noise':>7}{'guess':>7}{'read':>8}  limits"]
        for k, r in enumerate(self.rows, 1):
            trace, public = (
                round_up_to_figures(100 * r.rates[name]["upper"]) for name in ("trace", "public")
            )
            lines.append(
                f"{k:<4}{100 * r.private:>6.1f} %{100 * r.redacted:>7.1f} %{trace:>7} %"
                f"{public:>7} "
                f"%{r.epsilon:>9g}{r.noise:>7.3g}{round_up_to_figures(100 * r.guess):>7}"
                f"{'-' if r.read is None else f'{r.read:,}':>8}  {'met' if r.meets else 'not met'}"
            )
        lines += [f"{k}   {r.policy}, then {r.conservative}; a point is a {r.unit}"
                  for k, r in enumerate(self.rows, 1)]  # fmt: skip
        turns, pairs = count_of(self.turns, "turn", "turns"), count_of(self.pairs, "pair", "pairs")
        lines += [
            f"labels: {turns}, each from a different one of the text's {self.people:,} "
            f"{self.owners};",
            f"        they have judged {pairs}, and all are charged",
        ]
        note = [CHOICE_NOTE] * (self.best is not None)
        return "\n".join([*lines, self.why, *note, *self.commands])

    def page(self) -> str:
        """A page with the rows, and a plot of each row's guess over :data:`TRIED_EPSILONS`."""
        return html.render_template(
            "advise.html.j2",
            a=self,
            seconds=labelled.SECONDS_PER_TURN,
            log10=math.log10,
            choice=CHOICE_NOTE,
        )


def _owners_of_turns(about: Mapping[str, Any]) -> str:
    """The word for those from whom one turn each was drawn: people or conversations."""
    return {"user": "people", "dialogue": "conversations"}[str(about["by"])]


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
        labels: A folder of ``crtlib label`` that somebody has read; it counts the pairs it judges.
        require: Limits, as for ``crtlib certify --require``.
        policies: The policies to try; by default the corpus's own, if it has one.
        conservative: Conservative policies; each policy is tried with each of these.
        units: Units; each such pair is tried with each of these.
        hours: How many more hours people can read.
        trials: How many trainings will be compared, each of which is charged.
        settings: Fields of a training (:class:`confide.recipe.Crt`), such as ``epochs`` or
            ``init``.

    Raises:
        ValueError: For malformed limits, and for what cannot be judged or trained on.

    Guarantee:
        What is stated about a plan, limit by limit, is what its certificate states once it is
        carried out: both combine the same sources. Test: ``tests/release/test_advise.py::
        test_what_is_said_of_a_plan_is_said_by_its_certificate``.
    """
    if not require:
        raise ValueError("--require: is missing; give 'public <= 1%' or another limit")
    limits.judge_limits({"verdict": "none"}, require)  # refuses a malformed limit
    about = labelled.read_label_facts(labels)
    turns, people = int(about["judge"]), int(about["users"])
    pairs_and_units = [
        (p, c, u) for p in policies or [default_policy(corpus)] for c in conservative for u in units
    ]
    given = {k: v for k, v in settings.items() if v is not None}
    tried: list[tuple[CrtStudy, PreparedData]] = []
    for policy, cautious, unit in dict.fromkeys(pairs_and_units):
        fields = {**given, "policy": policy, "conservative": cautious, "unit": unit}
        study = study_of_text.build_study(corpus, **fields)
        prepared = study_data.prepare_data(study, known=stored_rates(study.corpus))
        tried.append(
            (
                study_of_text.choose_hyperparameters_by_size(study, prepared, given),
                train_on_corpus.attach_label_rates(study, prepared, labels),
            )
        )
    pairs = max(prepared.labels["judged"] for _, prepared in tried if prepared.labels)
    rows = tuple(
        _advise_on_pair(study, prepared, pairs, require, turns, people, trials)
        for study, prepared in tried
    )
    best = max(
        (k for k, r in enumerate(rows) if r.meets),
        key=lambda k: (1 - rows[k].redacted) * (2 - rows[k].private) / rows[k].noise,
        default=None,
    )
    commands: list[list[str]] = []
    if best is not None:
        why, r = f"plan {best + 1}: keeps the most text for its noise", rows[best]
        options = {"policy": r.policy, "conservative": r.conservative, "labels": labels}
        options |= {"epsilon": f"{r.epsilon:g}", "unit": r.unit}
        options |= {"init": "random", **given}  # else a machine with a GPU chooses another model
        out = _find_free_name("model")
        options |= {"trials": str(trials), "out": out} if trials > 1 else {"out": out}
        words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
        requirements = [("--require", text) for text in require]
        commands = [
            ["train", str(corpus), *itertools.chain(*words)],
            ["certify", out, "--out", "certificate.html", *itertools.chain(*requirements)],
        ]
    else:
        why, near = _explain_unmet(rows, about, hours)
        if near:
            draw = ["--turns", str(near), *_options_of_a_like_draw(about, pairs_and_units)]
            out = _find_free_name("more-labels")
            commands = [["label", "sample", str(corpus), *draw, "--out", out]]
    lines = tuple(shlex.join(["crtlib", *words]) for words in commands)
    return Advice(rows, best, why, lines, turns, people, pairs, _owners_of_turns(about))


def _find_free_name(name: str) -> str:
    """A free name for a folder here: ``name``, or else the first of ``name-2``, ``name-3``..."""
    names = itertools.chain([name], (f"{name}-{k}" for k in itertools.count(2)))
    return next(each for each in names if not Path(each).exists())


def _options_of_a_like_draw(
    about: Mapping[str, Any], pairs: Sequence[tuple[str, str, str]]
) -> list[str]:
    """Options of ``crtlib label sample`` that draw labels like those that judged these pairs of
    policies: by person or by conversation, with the same kinds, and with a new seal on custom files
    that the policies read.

    Guarantee:
        Test: ``tests/release/test_advise.py::
        test_the_draw_that_is_advised_judges_the_plans_that_asked_for_it``.
    """
    parts = dict.fromkeys(
        part for pi, pi_c, _ in pairs for name in (pi, pi_c) for part in name.split("+")
    )
    own = "+".join(filter(is_from_file, parts))
    seal = ["--seal", own] if own else []
    return ["--by", str(about["by"]), "--kinds", ",".join(about["kinds"]), *seal]


def _advise_on_pair(
    study: CrtStudy,
    prepared: PreparedData,
    pairs: int,
    require: Sequence[str],
    turns: int,
    people: int,
    trials: int,
) -> AdviceRow:
    """The advice on one pair of policies. The labels have judged ``pairs`` pairs; they are on
    ``turns`` turns, each from a different one of ``people`` people."""
    counted, parts = prepared.rates, prepared.prepared
    rates = rates_from_json(counted.to_json(), policy_pairs=pairs)
    prepared = replace(prepared, known=rates)
    odometer_fields = odometer_run.odometer_fields(study.ready(), prepared)
    meter = odometer_run.open_odometer(
        study.corpus, odometer_fields, init=study.init, protects=True, trials=trials
    )
    with tempfile.TemporaryDirectory() as new:  # creates no odometer for good
        if not meter.folder.is_dir():
            meter = replace(meter, folder=Path(new) / "odometer")
            odometer.prepare_odometer(meter.folder, meter.facts["corpus"])
        labels = {**(prepared.labels or {}), "alpha": RATES_ALPHA, "judged": rates.policy_pairs}
        spent = rate_bounds.with_current_bounds(meter.spent, labels, meter.facts["corpus"])
        origin = meter.origin()
    ready = functools.cache(lambda epsilon: replace(study, epsilon=epsilon).ready())

    def at(epsilon: float, rates: PolicyRates) -> dict[str, Any]:
        """The limits as the certificate of a training would judge them, whether all are met, and
        the largest chance of a right guess."""
        planned, judged_by = ready(epsilon), replace(prepared, known=rates)
        phases = crt_study.schedule_phases(planned)
        event = schedules.combine_phase_events(phases)
        assert event is not None
        facts = {**meter.facts, "gamma": rates.gamma, "delta2": rates.delta2}
        sources = record_sources.collect_sources_of_steps(
            planned, judged_by, replace(meter, run="this", facts=facts), [event], phases,
            private_updates=0, origin=origin,
        )  # fmt: skip
        content = training_record.facts_before_training(planned, judged_by)
        promise, why = training_record.preview_promise(content, sources, meter, spent)
        certificate = {
            "verdict": "void" if why else "holds",
            "rates": content["rates"],
            "spent_before": {"gamma": promise.gamma, "delta2": promise.delta2},
            "guarantee": promise.guarantee(),
            **promise.guesses(()),
        }
        judged = limits.judge_limits(certificate, require)
        return {
            "epsilon": epsilon,
            "noise": planned.noise_multiplier,
            "guess": certificate["right_guess"][0]["at_most"],
            "judged": judged,
            "met": all(row["met"] for row in judged),
            "void": why,
        }

    tried = [at(epsilon, rates) for epsilon in TRIED_EPSILONS]
    met = bisect_left(tried, True, key=lambda t: not t["met"])
    taken = tried[max(met - 1, 0)]
    most = people / turns
    can_be_drawn = (*(m for m in LABEL_MULTIPLES if m < most), most)
    # A new draw also reaches those who taught a policy, whose labels do not count.
    judging_turns = max(1, turns - counted.left_out_points)
    speaks = (1 - counted.left_out_clusters / people) * turns / judging_turns
    enough = (
        times
        for times in can_be_drawn
        if at(taken["epsilon"], _rates_after_labels(rates, times * speaks))["met"]
    )
    times = 1.0 if met else next(enough, None)
    covered = sum(s.end - s.start for spans in prepared.flags for s in spans)
    return AdviceRow(
        policy=study.policy,
        conservative=study.conservative,
        unit=study.unit,
        meets=met > 0,
        **{name: taken[name] for name in ("epsilon", "noise", "judged", "guess", "void")},
        private=len(parts.private) / max(1, parts.points),  # as screen counts
        redacted=covered / max(1, sum(len(p.text) for p in prepared.points)),
        rates={name: getattr(rates, name).to_json() for name in RATE_NAMES},
        read=None if times is None else min(math.ceil(turns * times), people),
        tried=tried,
    )


def _rates_after_labels(rates: PolicyRates, more: float) -> PolicyRates:
    """The rates that ``more`` times as many counted labels would give, if policies failed as often
    as on these. They would be a new draw, which judges all pairs again."""

    def enlarged(counts: tuple[int, int]) -> tuple[int, int]:
        failures, judged_secrets = counts
        all_then = math.floor(judged_secrets * more)
        return min(math.ceil(failures * more), all_then), all_then

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
    rows: Sequence[AdviceRow], about: Mapping[str, Any], hours: float
) -> tuple[str, int | None]:
    """Why no row meets the limits, and how many turns to draw if that would help."""
    if all(r.void for r in rows):
        return f"no plan has a promise; void: {' '.join(rows[0].void)}", None
    near = min((r.read for r in rows if r.read is not None), default=None)
    missing = " and ".join(_unmet_limits(rows))
    if near is None:
        who = _owners_of_turns(about)
        return (
            f"none would meet the limits even if a turn of each of the {int(about['users']):,} "
            f"{who} were read: {missing}; it takes better policies, or more {who}"
        ), None
    needed = near * labelled.SECONDS_PER_TURN / 3600  # a new draw, of which none is read
    why = (
        f"none meets the limits ({missing}): needs a separate draw of {near:,} turns, "
        f"{math.ceil(10 * needed) / 10:g} hours"
    )
    if needed > hours:
        return f"{why}; --hours allows {hours:g}", None
    return why, near


def _unmet_limits(rows: Sequence[AdviceRow]) -> Iterator[str]:
    """Each limit that no row meets, with the smallest bound that is certified."""
    for judged in zip(*(r.judged for r in rows), strict=True):
        if not any(row["met"] for row in judged):
            limit = judged[0]["limit"]
            every = [row["certified"] for row in judged if row["certified"] is not None]
            share = limit.split()[0].rstrip("<=") in RATE_NAMES
            least = at_most(min(every, default=0) * (100 if share else 1), 3) + " %" * share
            yield f"{limit}: {f'at least {least}' if every else 'nothing is certified'} here"
