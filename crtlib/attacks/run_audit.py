"""Audit of one real training: many invented secrets, each planted once, against controls.

A canary is a word of rare letters that the redaction policy passes over; to it belongs a control,
drawn like it, that nobody trained on. A coin decides which of the two the attacker sees first; he
names the one that the model finds likelier. The two could have changed places before training, so
the coins are fair whatever the model has read, and to exchange them is to replace one data point,
which is what the proof is about: the audit of Steinke, Nasr and Jagielski (2023) with pairs in
place of "in or out".

>>> found = RunAudit(0.4, 0.95, 300, 100, 60, 3.0, refuted_from=99, power=0.61)
>>> print(found.lines()[1])  # doctest: +NORMALIZE_WHITESPACE
not refuted: 60 of 100 guesses right, 99 would refute; half of the noise would be refuted at most
61 % of the time
>>> from dataclasses import replace
>>> print(replace(found, proved=8.0, refuted_from=None, power=0.0).lines()[1])
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
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy import optimize, special
from torch import nn

from crtlib import outputs
from crtlib.accounting import ledger
from crtlib.accounting.ledger import SampledGaussian
from crtlib.attacks.leakage import documents
from crtlib.checks import check
from crtlib.files import Named
from crtlib.intervals import at_most
from crtlib.models import scoring
from crtlib.models.folder import load
from crtlib.text import canaries, corpora
from crtlib.text.canaries import USER
from crtlib.text.records import Corpus
from crtlib.text.tokenizer import AnyTokenizer, bos

LEAST, MOST = 200, 8_000
"""Canaries of an audit."""
RECORD = "record.json"
Read = tuple[nn.Module, AnyTokenizer]


@dataclass(frozen=True)
class RunAudit:
    """``epsilon_lower`` is what one training shows at the least, ``proved`` what it may leak, or
    what somebody ``claimed``. ``refuted_from`` is the least number of right guesses, of so many
    ``guessed``, that shows more; None where no number does. ``power`` bounds how often this audit
    would refute a training that had half of the noise, whatever the attacker; 0 where nothing is
    proved, or of a claim."""

    epsilon_lower: float
    confidence: float
    canaries: int
    guessed: int
    right: int
    proved: float
    refuted_from: int | None
    power: float
    claimed: bool = False

    @property
    def refuted(self) -> bool:
        """Whether more was shown than was proved."""
        return self.epsilon_lower > self.proved

    def to_json(self) -> dict[str, Any]:
        """``audit.json``; infinite is "inf"."""
        return asdict(self) | ({"proved": "inf"} if self.proved == math.inf else {})

    def lines(self) -> list[str]:
        """What was proved and shown, and what the audit could have seen."""
        often = f"refuted at most {math.ceil(100 * self.power)} % of the time"
        verdict = f"not refuted: {self.right} of {self.guessed} guesses right, "
        verdict += f"{self.refuted_from or 'no number'} would refute"
        if not self.claimed:
            verdict += f"; half of the noise would be {often}"
        if not self.claimed and self.power <= 2 * (1 - self.confidence):  # as honest noise, nearly
            verdict = f"says nothing: half of the noise would be {often}"
        if not self.epsilon_lower:  # as blind attackers do, whatever the noise
            verdict = f"says nothing: {self.right} of {self.guessed} are a coin's guesses"
        word = "claimed" if self.claimed else "proved"
        if self.refuted:
            verdict = f"MORE THAN {word.upper()}"
        share = f"{100 * self.confidence:g} %"
        lower = math.floor(100 * self.epsilon_lower) / 100
        shown = f"audited at least {lower:.2f} ({share})"
        return [f"{word} {at_most(self.proved, 3)} · {shown}", verdict]


def audit(
    run: Named,
    corpus: Named,
    out: Named,
    *,
    references: Sequence[Named] = (),
    claim: float | None = None,
    guesses: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    force: bool = False,
) -> RunAudit:
    """Audit the training in the folder ``run`` and write ``audit.json`` into ``out``.

    ``references`` are models that have not read the canaries (:func:`gaps`). ``claim``: an epsilon
    that somebody says this training has, for every secret. Canaries that trained without noise are
    left out where nothing is claimed: no epsilon is proved of them. Raises ``ValueError`` for a run
    without enough canaries, or another corpus.
    """
    check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    check("claim", claim or 1.0, (claim or 1.0) > 0, "positive")
    outputs.check_folder(out, force=force)
    record = _record(Path(run))
    for folder in references:
        theirs = _record(Path(folder))["canaries"] if place(Path(folder)) else {"planted": 0}
        if theirs["planted"] and theirs["seed"] == record["canaries"]["seed"]:
            raise ValueError(f"--reference: {folder} has read the canaries of {run}")

    if corpora.corpus_hash(corpus) != record["corpus"]["sha256"]:
        raise ValueError(f"--corpus: {corpus} is not the text that {run} was trained on")
    planted = record["canaries"]
    if planted["planted"] < LEAST or planted["copies"] != 1:
        raise ValueError(f"{run}: was not trained with --canaries N --copies 1, N at least {LEAST}")
    known = dict(enumerate(canaries.pairs(planted["planted"], seed=planted["seed"])))
    if claim is None:
        known = {k: pair for k, pair in known.items() if k not in planted["in_public"]}
    form = record.get("settings", {}).get("template", "speaker")
    own, *others = [load(Path(folder)) for folder in (run, *references)]
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    found = judged(
        gaps(own, known, references=others, form=form),
        delta=record["delta"], claimed=claim is not None,
        proved=_proved(record) if claim is None else claim,
        half=_proved(record, 0.5) if claim is None else math.inf,
        confidence=confidence, guesses=guesses, seed=seed,
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


def gaps(
    read: Read,
    known: dict[int, tuple[str, str]],
    *,
    references: Sequence[Read] = (),
    form: str = "speaker",
) -> np.ndarray:
    """By how much the log-probability of each canary is above that of its control, (canaries,);
    less the mean of the same over ``references``, where there are any."""
    words = [word for pair in known.values() for word in pair]
    own, *others = [_logprobs(each, words, form) for each in (read, *references)]
    values = own - np.mean(others or [np.zeros(1)], axis=0)
    return np.asarray(values[0::2] - values[1::2])


def _logprobs(read: Read, words: Sequence[str], form: str) -> np.ndarray:
    """Of each word as a canary, (words,)."""
    model, tokenizer = read
    planted = canaries.insert(Corpus("", ()), words, copies=1, seed=0, carrier="")
    points = canaries.points(planted, "turn", canaries.by_name(form, tokenizer))
    start = [] if (first := bos(tokenizer)) is None else [first]
    of = {d.user: [*start, *d.tokens] for d in documents(points, tokenizer)}
    found = scoring.token_logprobs(model, [of[f"{USER}{k}"] for k in range(len(words))])
    return np.array([x.sum() for x in found])


def judged(
    gaps: np.ndarray,
    *,
    delta: float,
    proved: float,
    half: float,
    confidence: float = 0.95,
    guesses: int | None = None,
    seed: int,
    claimed: bool = False,
) -> RunAudit:
    """What these gaps show of a training of epsilon ``proved``, which would be ``half`` with half
    of the noise."""
    m = len(gaps)
    coins = np.random.default_rng([seed, 2]).random(m) < 0.5
    values = np.where(coins, 1, -1) * gaps
    best = one_run(values, coins, delta=delta, confidence=confidence, guesses=guesses)
    from_ = _refuting(m, proved, delta=delta, confidence=confidence, guesses=guesses)
    reached = sum(
        chance(m, guesses=tried, correct=enough, delta=delta, epsilon=half)
        for tried, enough in from_.items()
    )
    return RunAudit(
        best.epsilon, confidence, m, best.guesses, best.correct, proved,
        from_.get(best.guesses), 0.0 if claimed else min(1.0, reached), claimed,
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _refuting(
    m: int, proved: float, *, delta: float, confidence: float, guesses: int | None
) -> dict[int, int]:
    """Of each number of guesses, the least right ones that show more than was proved, if any do."""
    sizes, found = sizes_of(m, guesses), {}
    for tried in sizes:

        def shows(right: int, tried: int = tried) -> float:
            return one_run_lower_bound(
                m, guesses=tried, correct=right, delta=delta,
                confidence=1 - (1 - confidence) / len(sizes),
            )  # fmt: skip

        enough = bisect.bisect_right(range(tried + 1), proved, key=shows)
        if enough <= tried:
            found[tried] = enough
    return found


def enough(proved: float, half: float, *, delta: float, power: float) -> int:
    """Canaries with which an audit refutes ``power`` of the trainings of epsilon ``half`` that say
    ``proved``, where the attacker is as good as ``half`` lets him be in a fifth of them. Raises
    ``ValueError`` where :data:`MOST` do not do."""
    for m in np.geomspace(LEAST, MOST, 20).round().astype(int).tolist():
        found = judged(
            np.zeros(m), delta=delta, proved=proved, half=half, guesses=m // 5, seed=0,
            confidence=0.99,
        )  # fmt: skip
        if found.power >= power:
            return int(m)
    raise ValueError(
        f"--power {power}: needs more than {MOST:,} canaries; lower --epsilon or --delta"
    )


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


def place(run: Path) -> Path | None:
    """Where the record of a training is, if there is one."""
    places = (run / RECORD, run.with_name(run.name + ".work") / RECORD)
    return next((path for path in places if path.is_file()), None)


def _record(run: Path) -> dict[str, Any]:
    if (path := place(run)) is None:
        raise ValueError(f"{run}: holds no {RECORD}; it was not made by 'crtlib train'")
    return dict(json.loads(path.read_text(encoding="utf-8")))


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
class OneRun(NamedTuple):
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
            m, guesses=tried, correct=correct, delta=delta,
            confidence=1 - (1 - confidence) / len(tries),
        )  # fmt: skip
        out.append(OneRun(epsilon=epsilon, guesses=tried, correct=correct))
    return max(out, key=lambda one: one.epsilon)
