"""Audit of one real training: many invented secrets, each planted once, against controls.

Beside each planted secret a control is drawn from what is left of the same space. A coin decides
which of the two the attacker sees first; he names the one that the model finds likelier. The two
could have changed places before training, so the coins are fair whatever the model has read, and
to exchange them is to replace one data point, which is what the proof is about: the audit of
Steinke, Nasr and Jagielski (2023) with pairs in place of "in or out".

>>> pairs(["000001", "000002"], seed=0)[0][0]
'000001'
>>> print(RunAudit(0.4, 0.95, 300, 100, 60, 3.0, refuted_from=99, power=0.61).lines()[1])
not refuted: 60 of 100 guesses right, 99 would refute; half of the noise at most 61 % of the time
>>> print(RunAudit(0.4, 0.95, 300, 100, 60, 8.0, refuted_from=None, power=0.0).lines()[1])
says nothing: half of the noise would be refuted at most 0 % of the time

What an attack on one training proves: a lower bound of epsilon, with confidence.

A ledger says what a model can leak at the most; an audit, what it leaks at the least. The coin must
flip what the guarantee is about: for CRT the canary against ``<MASK>`` in its place, not against
its absence, or another claim is tested.

>>> round(one_run_lower_bound(1000, guesses=100, correct=100), 4)
3.493
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy import optimize, special

from crtlib import outputs
from crtlib.accounting import ledger
from crtlib.accounting.events import SampledGaussian
from crtlib.attacks.leakage import documents
from crtlib.checks import check
from crtlib.files import Named
from crtlib.intervals import at_most
from crtlib.models import scoring
from crtlib.models.folder import load
from crtlib.text import canaries, corpora
from crtlib.text.records import Point
from crtlib.text.tokenizer import bos

LEAST = 200
"""Canaries that an audit needs at the least."""
RECORD = "record.json"


@dataclass(frozen=True)
class RunAudit:
    """``epsilon_lower`` is what one training shows at the least, ``proved`` what it may leak.
    ``refuted_from`` is the least number of right guesses, of so many ``guessed``, that shows more
    than was proved; None where no number does. ``power`` bounds how often this audit would refute a
    training that had half of the noise, whatever the attacker; 0 where nothing is proved."""

    epsilon_lower: float
    confidence: float
    canaries: int
    guessed: int
    right: int
    proved: float
    refuted_from: int | None
    power: float

    @property
    def refuted(self) -> bool:
        """Whether more was shown than was proved."""
        return self.epsilon_lower > self.proved

    def to_json(self) -> dict[str, Any]:
        """``audit.json``; infinite is "inf"."""
        proved: float | str = self.proved if math.isfinite(self.proved) else "inf"
        return asdict(self) | {"proved": proved}

    def lines(self) -> list[str]:
        """What was proved and shown, and what the audit could have seen."""
        half = f"at most {math.ceil(100 * self.power)} % of the time"
        verdict = f"not refuted: {self.right} of {self.guessed} guesses right, "
        verdict += f"{self.refuted_from} would refute; half of the noise {half}"
        if self.power <= 2 * (1 - self.confidence):  # hardly more often than honest noise
            verdict = f"says nothing: half of the noise would be refuted {half}"
        if not self.epsilon_lower:  # as blind attackers do, whatever the noise
            verdict = f"says nothing: {self.right} of {self.guessed} are a coin's guesses"
        if self.refuted:
            verdict = "MORE THAN PROVED"
        share = f"{100 * self.confidence:g} %"
        lower = math.floor(100 * self.epsilon_lower) / 100
        shown = f"audited at least {lower:.2f} ({share})"
        return [f"proved {at_most(self.proved, 3)} · {shown}", verdict]


def audit(
    run: Named,
    corpus: Named,
    out: Named,
    *,
    guesses: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    force: bool = False,
) -> RunAudit:
    """Audit the training in the folder ``run`` and write ``audit.json`` into ``out``.

    Canaries that trained without noise are left out: no epsilon is claimed of them. Raises
    ``ValueError`` for a run without enough canaries, or another corpus.
    """
    check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    outputs.check_folder(out, force=force)
    record = _record(Path(run))
    if corpora.corpus_hash(corpus) != record["corpus"]["sha256"]:
        raise ValueError(f"--corpus: {corpus} is not the text that {run} was trained on")
    planted = record["canaries"]
    if planted["planted"] < LEAST or planted["copies"] != 1:
        raise ValueError(f"{run}: was not trained with --canaries N --copies 1, N at least {LEAST}")
    every = canaries.make(planted["planted"], seed=planted["seed"])
    public = set(planted["in_public"])
    values = [value for k, value in enumerate(every) if k not in public]
    model, tokenizer = load(Path(run))
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    known = pairs(values, seed=seed, taken=every)
    shown = [value for pair in known for value in pair]
    points = [Point(str(k), "canary", canaries.prefix() + value) for k, value in enumerate(shown)]
    start = [] if (first := bos(tokenizer)) is None else [first]
    ids = [[*start, *d.tokens] for d in documents(points, tokenizer)]
    scores = np.array([s.sum() for s in scoring.token_logprobs(model, ids)]).reshape(-1, 2)
    coins = np.random.default_rng([seed, 2]).random(len(known)) < 0.5
    gain = np.where(coins, 1, -1) * (scores[:, 0] - scores[:, 1])
    best = one_run(gain, coins, delta=record["delta"], confidence=confidence, guesses=guesses)
    proved, half = _proved(record), _proved(record, 0.5)
    sizes = sizes_of(len(values), guesses)
    terms = {"delta": record["delta"], "confidence": 1 - (1 - confidence) / len(sizes)}

    def least(tried: int) -> int | None:
        """Of so many guesses, the right ones that show more than was proved."""

        def shows(right: int) -> float:
            return one_run_lower_bound(len(values), guesses=tried, correct=right, **terms)

        enough = bisect.bisect_right(range(tried + 1), proved, key=shows)
        return enough if enough <= tried else None

    delta = record["delta"]
    reached = [
        chance(len(values), guesses=tried, correct=enough, delta=delta, epsilon=half)
        for tried in sizes
        if (enough := least(tried)) is not None
    ]
    found = RunAudit(
        best.epsilon, confidence, len(values), best.guesses, best.correct, proved,
        least(best.guesses), min(1.0, sum(reached)),
    )  # fmt: skip
    its = outputs.keyed(record["corpus"]["sha256"], bytes.fromhex(record["key"]))
    weights = outputs.sha256(Path(run) / "model.safetensors")  # what was read, not what is said
    inputs = {"corpus": its, "model": weights}
    options = {"guesses": guesses, "confidence": confidence, "seed": seed}
    with outputs.staged(
        out, command="audit", options=options, inputs=inputs, public=("*",), force=force
    ) as part:
        about = {"schema": "crtlib/audit/1", "model": weights}
        text = json.dumps(about | found.to_json(), indent=1)
        (part / "audit.json").write_text(text + "\n", encoding="utf-8")
    return found


def pairs(values: Sequence[str], *, seed: int, taken: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Each planted value with a control, uniform over those that were not planted."""
    used = {*values, *taken}
    order = np.random.default_rng([seed, 1]).permutation(canaries.SPACE)
    free = (f"{v:0{canaries.DIGITS}d}" for v in order.tolist())
    controls = (value for value in free if value not in used)
    return [(value, next(controls)) for value in values]


def _proved(record: dict[str, Any], share: float = 1.0) -> float:
    """epsilon of a secret that is in clear in a private point, with a share of the noise; infinite
    where noise is missing or known."""
    private = [p for p in record["phases"] if p["kind"] == "private"]
    noisy = bool(private) and all(p["noise_multiplier"] for p in private)
    if not noisy or record["randomness"] == "seed" or not record["protects_all"]:
        return math.inf
    events = [
        SampledGaussian(p["sampling_probability"], share * p["noise_multiplier"], p["steps"])
        for p in private
    ]
    return ledger.epsilon(
        events, delta=record["delta"], accountant=record["accountant"],
        neighbouring_relation="replace",
    )  # fmt: skip


def _record(run: Path) -> dict[str, Any]:
    for path in (run / RECORD, run.with_name(run.name + ".work") / RECORD):
        if path.is_file():
            return dict(json.loads(path.read_text(encoding="utf-8")))
    raise ValueError(f"{run}: holds no {RECORD}; it was not made by 'crtlib train'")


def one_run_lower_bound(
    examples: int, *, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Lower bound of epsilon from a single run (Steinke, Nasr and Jagielski 2023).

    Each of ``examples`` was in the training data by a fair coin of its own; the attacker named the
    coin of ``guesses`` of them and left the rest open, and was ``correct`` so many times. Under
    (epsilon, delta) the chance of as many is at most P[Bin(guesses, e^eps / (1 + e^eps)) >=
    correct] plus a term for delta; returned is the epsilon at which it becomes 1 - ``confidence``.
    """
    check("delta", delta, 0 <= delta < 1, "in [0, 1)")
    if not 0 <= correct <= guesses <= examples or examples < 1:
        raise ValueError(
            f"correct={correct}, guesses={guesses}: must be 0 <= correct <= guesses <= "
            f"examples={examples}, examples >= 1"
        )
    check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")

    def excess(epsilon: float) -> float:
        reached = chance(examples, guesses=guesses, correct=correct, delta=delta, epsilon=epsilon)
        return reached - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-10))


def chance(examples: int, *, guesses: int, correct: int, delta: float, epsilon: float) -> float:
    """A bound on the chance of so many right guesses under (epsilon, delta): see
    :func:`one_run_lower_bound`."""
    below = scipy.stats.binom.cdf(np.arange(-1, correct), guesses, special.expit(epsilon))
    i = np.arange(1, correct + 1)
    spread = ((below[-1] - below[correct - i]) / i).max(initial=0.0)
    beta = scipy.stats.binom.sf(correct - 1, guesses, special.expit(epsilon))
    return float(beta + 2 * examples * delta * spread)


# --------------------------------------------------------------------------- one run
@dataclass(frozen=True, kw_only=True)
class OneRun:
    """The ``epsilon`` that one training refutes: of its canaries, each in by a coin of its own, the
    attacker named the coins of ``guesses`` and was ``correct`` so many times."""

    epsilon: float
    guesses: int
    correct: int


def sizes_of(canaries: int, guesses: int | None) -> list[int]:
    """How many of the canaries are guessed on: so many, or five numbers."""
    tries = [max(2, canaries // part) for part in (20, 10, 5, 2, 1)]
    return tries if guesses is None else [guesses]


def one_run(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: int | None = None,
) -> OneRun:
    """Audit of one training with many single-copy canaries (:func:`one_run_lower_bound`).

    ``scores`` are high where the attacker thinks that a canary was in; ``included`` are the fair
    coins, of bool, that said so before training. The half of the ``guesses`` with the highest
    scores is called in, that with the lowest out, and the middle is left open. None tries a
    twentieth, a tenth, a fifth, a half and all of the canaries and divides the error among the
    five. Raises ``ValueError`` for sizes that differ.
    """
    scores, included = np.asarray(scores, dtype=float), np.asarray(included, dtype=bool)
    m = len(scores)
    if scores.shape != included.shape or scores.ndim != 1 or not m:
        raise ValueError(f"included: has shape {included.shape}: must be one coin a score, ({m},)")
    order = np.argsort(scores, kind="stable")
    tries = sizes_of(m, guesses)
    out = []
    for tried in tries:
        check("guesses", tried, 0 < tried <= m, f"in [1, {m}]")
        low, high = order[: tried // 2], order[m - (tried - tried // 2) :]
        correct = int(included[high].sum() + (~included[low]).sum())
        epsilon = one_run_lower_bound(
            m,
            guesses=tried,
            correct=correct,
            delta=delta,
            confidence=1 - (1 - confidence) / len(tries),
        )
        out.append(OneRun(epsilon=epsilon, guesses=tried, correct=correct))
    return max(out, key=lambda one: one.epsilon)
