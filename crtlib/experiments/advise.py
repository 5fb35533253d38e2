"""From an officer's limits back to a plan that meets them, or to what is missing.

Each pair of policies is judged by labels, as ``crtlib train --labels`` would, and prepared as that
would; so the bounds of a row are those that its certificate will have. All pairs that were looked
at are charged in all rows: who takes the best of many has chosen by these labels.
"""

from __future__ import annotations

import math
import shlex
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from crtlib.accounting import odometer
from crtlib.experiments import crt, own, record
from crtlib.experiments.crt import CrtStudy, Data
from crtlib.files import Named
from crtlib.intervals import at_most, upwards
from crtlib.release import certify, gate
from crtlib.reports import pages
from crtlib.screening.corpus import fitting
from crtlib.screening.rates import ALPHA, NAMES, Rate, Rates, bound, from_json
from crtlib.text import labels as labelled
from crtlib.training import methods

EPSILONS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""The noise that is tried, by the epsilon of one data point in clear."""
MORE = tuple(1.05**k for k in range(1, 120))
"""How many times as many labels are thought of, if those that are there are too few."""


@dataclass(frozen=True)
class Row:
    """A pair of policies with the least noise that meets the limits (or, where none does, with the
    most that was tried): the bounds of its certificate. ``read``: turns that must be read, in all,
    until it meets them, if the policies go on to fail as often as on these labels; None where no
    number of labels is enough. ``redacted`` is a share of the characters, ``private`` of the
    points. ``tried``: for each of :data:`EPSILONS` the noise, the guess (in [0, 1]), the limits as
    judged, and whether all are met."""

    policy: str
    conservative: str
    unit: str
    meets: bool
    epsilon: float
    noise: float
    private: float
    redacted: float
    rates: Mapping[str, Any]
    judged: Sequence[Mapping[str, Any]]
    guess: float
    read: int | None
    tried: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Advice:
    """The ``rows``, which of them is advised (None: none meets the limits), and why. ``turns`` were
    read of so many ``people``; ``pairs`` of policies have judged these labels."""

    rows: tuple[Row, ...]
    best: int | None
    why: str
    commands: tuple[str, ...]
    turns: int
    people: int
    pairs: int

    def json(self) -> dict[str, Any]:
        """As one JSON object, schema ``crtlib/advice/1``."""
        return {"schema": "crtlib/advice/1", "ok": self.best is not None, **asdict(self)}

    def text(self) -> str:
        """For a terminal, at most 80 columns where names allow."""
        head = f"{'':4}{'private':>8}{'redacted':>9}{'trace':>9}{'public':>9}"
        lines = [f"{head}{'epsilon':>9}{'noise':>7}{'guess':>7}{'read':>8}  limits"]
        for k, r in enumerate(self.rows, 1):
            trace, public = (upwards(100 * r.rates[name]["upper"]) for name in ("trace", "public"))
            lines.append(
                f"{k:<4}{100 * r.private:>6.1f} %{100 * r.redacted:>7.1f} %{trace:>7} %"
                f"{public:>7} %{r.epsilon:>9g}{r.noise:>7.3g}{upwards(100 * r.guess):>7}"
                f"{'-' if r.read is None else f'{r.read:,}':>8}  {'met' if r.meets else 'not met'}"
            )
        lines += [f"{k}   {r.policy}, then {r.conservative}; a point is a {r.unit}"
                  for k, r in enumerate(self.rows, 1)]  # fmt: skip
        lines.append(
            f"labels: {self.turns:,} turns of {self.people:,} people; they have judged "
            f"{self.pairs} pairs, and all are charged"
        )
        return "\n".join([*lines, self.why, *self.commands])

    def page(self) -> str:
        """A page with the rows, and the guess of each over :data:`EPSILONS` as a picture."""
        return pages.page("advise.html.j2", a=self, seconds=labelled.SECONDS, log10=math.log10)


def advise(
    corpus: Named,
    labels: Named,
    require: Sequence[str],
    *,
    policies: Sequence[str] = (),
    conservative: Sequence[str] = ("cautious", "everything"),
    units: Sequence[str] = ("turn",),
    hours: float = 0.0,
    **settings: Any,
) -> Advice:
    """Which policies and how much noise meet limits, what that costs, or what is missing.

    Args:
        labels: A folder of ``crtlib label`` that somebody has read; it counts the pairs judged.
        require: Limits as of ``crtlib certify --require``.
        policies: By default the corpus' own, if any.
        conservative: With each of which each policy is tried, for each of the ``units``.
        hours: How long people can still read.
        settings: Fields of a training (:class:`crtlib.recipe.Crt`), as ``epochs`` or ``init``.

    Raises:
        ValueError: For limits that are none, and for what cannot be judged or trained on.
    """
    if not require:
        raise ValueError("--require: is missing; say 'public <= 1%' or another limit")
    certify.judged({"verdict": "none"}, require)  # refuses what is none
    about = labelled.facts(labels)
    names = [(p, c, u) for p in policies or [fitting(corpus)] for c in conservative for u in units]
    given = {k: v for k, v in settings.items() if v is not None}
    tried = [_prepared(corpus, labels, name, given) for name in dict.fromkeys(names)]
    pairs = max(prepared.labels["judged"] for _, prepared in tried if prepared.labels)
    rows = []
    for study, prepared in tried:
        prepared = replace(prepared, known=from_json(prepared.rates.to_json(), judged=pairs))
        rows.append(_row(study, prepared, require, int(about["judge"])))
    return _advice(rows, require, corpus, labels, about, pairs, hours, given)


def _prepared(
    corpus: Named, labels: Named, names: tuple[str, str, str], given: Mapping[str, Any]
) -> tuple[CrtStudy, Data]:
    """A training with a pair of policies as it would begin, judged by the labels."""
    policy, conservative, unit = names
    how = {**given, "policy": policy, "conservative": conservative, "unit": unit}
    study = own.study_of(corpus, **how)
    prepared = crt.data(study)
    return own.sized(study, prepared, given), own._judged(study, prepared, labels)


@dataclass(frozen=True)
class _Outlook:
    """What the certificate of a training would say, at any epsilon and for any rates."""

    study: CrtStudy
    facts: Mapping[str, Any]
    spent: odometer.Spent
    require: Sequence[str]
    ready: dict[float, CrtStudy] = field(default_factory=dict)

    def at(self, epsilon: float, rates: Rates) -> dict[str, Any]:
        """The limits as judged, whether all are met, and how often a guess is right."""
        if epsilon not in self.ready:
            self.ready[epsilon] = replace(self.study, epsilon=epsilon).ready()
        ready, facts = self.ready[epsilon], self.facts
        event = methods.events(crt.schedule(ready))
        assert event is not None
        screening = gate.Screening(facts["screening"], rates.gamma, rates.delta2)
        holds = tuple(facts["holds"].items())
        run = gate.Noised("this", facts["unit"], facts["relation"], (event,), screening, holds)
        fold = gate.fold([run, gate.Screened("public steps", screening)])
        promise = certify.promise(fold, self.spent, delta=ready.delta, accountant=ready.accountant)
        told = {"rates": rates.to_json(), "protects_all": True, "searched": {"trials": 1},
                "oracle_on_real_text": record.oracle(self.study)}  # fmt: skip
        trained = certify.Trained(Path(), told, fold, self.spent)
        why = certify.reasons(trained, promise, promise.missed()[0])
        said = {
            "verdict": "void" if why else "holds",
            "rates": told["rates"],
            "spent_before": {"gamma": promise.gamma, "delta2": promise.delta2},
            "guarantee": promise.guarantee(),
            **promise.guesses(()),
        }
        judged, guess = certify.judged(said, self.require), said["right_guess"][0]["at_most"]
        return {"epsilon": epsilon, "noise": ready.noise_multiplier or 0.0, "guess": guess,
                "judged": judged, "met": all(row["met"] for row in judged)}  # fmt: skip


def _row(study: CrtStudy, prepared: Data, require: Sequence[str], turns: int) -> Row:
    meter = record.meter(study.ready(), prepared)
    with tempfile.TemporaryDirectory() as new:  # where there is no odometer, none is left
        if not meter.folder.is_dir():
            meter = replace(meter, folder=Path(new) / "odometer")
            odometer.reserve(meter.folder, meter.facts["corpus"])
        told = {**(prepared.labels or {}), "alpha": ALPHA, "judged": prepared.rates.judged}
        spent = certify.family(meter.spent, told, meter.facts["corpus"])
        look = _Outlook(study, meter.facts, spent, require)
    rates, parts = prepared.rates, prepared.prepared
    tried = [look.at(epsilon, rates) for epsilon in EPSILONS]
    met = bisect_left(tried, True, key=lambda t: not t["met"])
    taken = tried[max(met - 1, 0)]
    enough = (m for m in MORE if look.at(taken["epsilon"], _after(rates, m))["met"])
    times = 1.0 if met else next(enough, None)
    covered = sum(s.end - s.start for spans in prepared.pi for s in spans)
    return Row(
        policy=study.policy,
        conservative=study.conservative,
        unit=study.unit,
        meets=met > 0,
        epsilon=taken["epsilon"],
        noise=taken["noise"],
        private=len(parts.private) / max(1, len(parts.all)),
        redacted=covered / max(1, sum(len(p.text) for p in prepared.points)),
        rates={name: getattr(rates, name).to_json() for name in NAMES},
        judged=taken["judged"],
        guess=taken["guess"],
        read=None if times is None else math.ceil(turns * times),
        tried=tried,
    )


def _after(rates: Rates, more: float) -> Rates:
    """The rates after so many times as many labels, if policies fail as often as on these: a draw
    of its own, which judges all pairs once more."""

    def grown(rate: Rate) -> Rate:
        if rate.how != "one_per_cluster":
            return rate
        (count, of), *again = (
            (min(math.ceil(x * more), math.floor(n * more)), math.floor(n * more))
            for x, n in ((rate.count, rate.of), *([rate.again] if rate.again else []))
        )
        upper = bound(count, of, *again, alpha=rates.alpha / 2)
        return replace(rate, count=count, of=of, upper=upper, again=next(iter(again), None))

    return replace(
        rates, miss=grown(rates.miss), trace=grown(rates.trace), public=grown(rates.public)
    )


def _advice(
    rows: Sequence[Row],
    require: Sequence[str],
    corpus: Named,
    labels: Named,
    about: Mapping[str, Any],
    pairs: int,
    hours: float,
    given: Mapping[str, Any],
) -> Advice:
    turns, people = int(about["judge"]), int(about["users"])
    who = {"user": "people", "dialogue": "conversations"}[str(about["by"])]
    best = max(
        (k for k, r in enumerate(rows) if r.meets),
        key=lambda k: (1 - rows[k].redacted) * (2 - rows[k].private) / rows[k].noise,
        default=None,
    )
    commands: list[str] = []
    if best is not None:
        r = rows[best]
        options = {"policy": r.policy, "conservative": r.conservative, "labels": labels}
        options |= {"epsilon": f"{r.epsilon:g}", "unit": r.unit, **given, "out": "model"}
        named = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
        asked = [word for text in require for word in ("--require", text)]
        commands = [
            shlex.join(["crtlib", "train", str(corpus), *chain.from_iterable(named)]),
            shlex.join(["crtlib", "certify", "model", "--out", "certificate.html", *asked]),
        ]
        why = f"plan {best + 1}: keeps most text for its noise"
        return Advice(tuple(rows), best, why, tuple(commands), turns, people, pairs)
    near = min((r.read for r in rows if r.read is not None), default=None)
    missing = " and ".join(_missing(rows))
    if near is None:
        why = f"none meets the limits, however many labels: {missing}; it takes better policies"
    else:
        needed = near * labelled.SECONDS / 3600
        left = (near - turns) * labelled.SECONDS / 3600
        why = f"none meets the limits ({missing}): needs {near:,} turns, {needed:.0f} hours"
        if near > people:
            why += f"; there are {people:,} {who}"
        elif left > hours:
            why += f", {left:.0f} more than were read; --hours allows {hours:g}"
        else:
            sample = ["--turns", str(near), "--out", "more-labels"]
            commands = [shlex.join(["crtlib", "label", "sample", str(corpus), *sample])]
    return Advice(tuple(rows), None, why, tuple(commands), turns, people, pairs)


def _missing(rows: Sequence[Row]) -> Iterator[str]:
    """Each limit that no row meets, with the least that is certified."""
    for judged in zip(*(r.judged for r in rows), strict=True):
        if not any(row["met"] for row in judged):
            limit = judged[0]["limit"]
            every = [row["certified"] for row in judged if row["certified"] is not None]
            share = limit.split()[0].rstrip("<=") in NAMES
            least = at_most(min(every, default=0) * (100 if share else 1), 3) + " %" * share
            yield f"{limit}: {f'at least {least}' if every else 'nothing is certified'} here"
