"""Audit of one real training: many invented secrets, each planted once, against controls.

A canary is a word of rare letters that the redaction policy passes over. It has a control, drawn in
the same way, that nobody trained on. A coin decides which of the two the attacker sees first; the
attacker names the one that the model finds likelier. The two could have been exchanged before
training, so the coins are fair whatever the model has read. An exchange replaces one data point,
which is what the proof is about. This is the audit of Steinke, Nasr and Jagielski (2023), with
pairs in place of "in or out".

>>> found = RunAudit(0.4, 0.95, 300, 100, 60, 3.0, refuted_from=99,
...                  strongest_attacker_power=0.61)
>>> print(found.lines()[1])  # doctest: +NORMALIZE_WHITESPACE
not refuted: 60 of 100 guesses right, 99 would refute; a training with half the noise would be
refuted at most 61 % of the time
>>> from dataclasses import replace
>>> blind = replace(found, proved=8.0, refuted_from=None, strongest_attacker_power=0.0)
>>> print(blind.lines()[1])
says nothing: a training with half the noise would be refuted at most 0 % of the time
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import hmac
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from crtlib import files, outputs
from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.arguments import argument, argument_error, arguments
from crtlib.attacks.leakage import tokenise_documents
from crtlib.attacks.one_run_bound import (
    AUDIT_CONFIDENCE,
    audit_one_run,
    bound_guess_chance,
    guess_counts,
    one_run_lower_bound,
)
from crtlib.checks import check_allowed
from crtlib.files import StrPath
from crtlib.intervals import at_most
from crtlib.models import scoring
from crtlib.models.model_folder import load_model
from crtlib.models.tensor_files import hash_tensors
from crtlib.text import canaries, corpora, templates
from crtlib.text.canaries import CANARY_USER_PREFIX
from crtlib.text.records import Corpus
from crtlib.text.tokenizer import AnyTokenizer, bos_id_of

MIN_AUDIT_CANARIES, MAX_AUDIT_CANARIES = 200, 8_000
"""The fewest and the most canaries of an audit."""
AUDITED_RECORD_FILE = "record.json"
SETTINGS_FILE = "experiment.json"
"""The settings of a training, which are released with its model."""
ModelAndTokenizer = tuple[nn.Module, AnyTokenizer]


@dataclass(frozen=True)
class RunAudit:
    """The result of an audit. ``epsilon_lower`` is the lower bound that one training shows,
    ``proved`` what it may leak at most, as proved or as somebody ``claimed``. ``refuted_from`` is
    the smallest number of right guesses, among ``guessed``, that shows more; None if no number
    does. ``strongest_attacker_power`` bounds how often this audit would refute a training with half
    of the noise, whatever the attacker: it is not the power of the actual attacker. It is 0 if
    nothing is proved, and None for a claim."""

    epsilon_lower: float
    confidence: float
    canaries: int
    guessed: int
    right: int
    proved: float
    refuted_from: int | None
    strongest_attacker_power: float | None
    claimed: bool = False

    @property
    def refuted(self) -> bool:
        """Whether more was shown than was proved or claimed."""
        return self.epsilon_lower > self.proved

    @property
    def says_nothing(self) -> str | None:
        """Why nothing follows from this audit. None if it refutes, or if it shows an epsilon above
        0 and would have noticed half of the noise clearly more often than it accuses honest noise.

        Guarantee:
            A statement that less noise would have been noticed is made only if the attacker was
            right more often than a coin. Test: ``tests/attacks/test_run_audit.py::
            test_an_audit_whose_attacker_saw_nothing_prints_no_power``.
        """
        if self.refuted:
            return None
        if not self.epsilon_lower:  # like a blind attacker, whatever the noise
            return f"{self.right} of {self.guessed} right is what a coin toss gives"
        power = self.strongest_attacker_power
        if power is not None and power <= 2 * (1 - self.confidence):  # almost like honest noise
            return f"a training with half the noise would be {self._how_often_refuted(power)}"
        return None

    @staticmethod
    def _how_often_refuted(power: float) -> str:
        return f"refuted at most {math.ceil(100 * power)} % of the time"

    def to_json(self) -> dict[str, Any]:
        """The content of ``audit.json``; infinity is "inf"."""
        proved = {"proved": "inf"} if self.proved == math.inf else {}
        return asdict(self) | proved | {"says_nothing": self.says_nothing}

    def lines(self) -> list[str]:
        """Two lines: what was proved and shown, and what the audit could have noticed."""
        verdict = f"not refuted: {self.right} of {self.guessed} guesses right, "
        verdict += f"{self.refuted_from or 'no number'} would refute"
        if (power := self.strongest_attacker_power) is not None:
            verdict += f"; a training with half the noise would be {self._how_often_refuted(power)}"
        if self.says_nothing:
            verdict = f"says nothing: {self.says_nothing}"
        word = "claimed" if self.claimed else "proved"
        if self.refuted:
            verdict = f"MORE THAN {word.upper()}"
        share = f"{100 * self.confidence:g} %"
        lower = math.floor(100 * self.epsilon_lower) / 100
        shown = f"audited at least {lower:.2f} ({share})"
        return [f"{word} {at_most(self.proved, 3)} · {shown}", verdict]


def audit_training(
    run: StrPath,
    corpus: StrPath,
    out: StrPath,
    *,
    references: Sequence[StrPath] = (),
    claim: float | None = None,
    guesses: int | None = None,
    confidence: float = AUDIT_CONFIDENCE,
    seed: int | None = None,
    force: bool = False,
    enter: Callable[[str, float | None], None] = lambda name, bound: None,
) -> RunAudit:
    """Audit the training in the folder ``run`` and write ``audit.json`` into ``out``.

    Canaries that were trained on without noise are left out unless something is claimed, because no
    epsilon is proved for them. The bound is that for one run (Steinke, Nasr and Jagielski 2023).

    Args:
        run: The folder of the model, with its record.
        corpus: The text that it was trained on.
        out: A folder for the result.
        references: Models that have not read the canaries (:func:`canary_control_gaps`).
        claim: An epsilon that somebody claims for this training, for every secret; None: what its
            record proves.
        guesses: The number of canaries that are guessed on; None tries several numbers and pays for
            that.
        confidence: The confidence of the bound, over the coins.
        seed: The seed of the coins; None: they follow from the key and the weights of the run, so
            that nobody can draw them again.
        force: Replace the contents of ``out``.
        enter: Called with a name for the question and None before anything is measured, and with
            that name and the lower bound at :data:`AUDIT_CONFIDENCE` before anything is written or
            returned.

    Returns:
        The lower bound that was shown, what was proved or claimed, and the power of the audit.

    Raises:
        ValueError: For a run without enough canaries or without a record, for another corpus, and
            for a run or a reference that had read the canaries before.

    Guarantee:
        An honest training is refuted with a chance of at most 1 - ``confidence``: what is proved
        for a canary counts every training that read it, and asking again gives the same answer.
        Tests:
        ``tests/attacks/test_run_audit.py::test_what_is_proved_counts_all_that_read_the_canaries``,
        ``tests/attacks/test_run_audit.py::test_no_audit_is_drawn_again``,
        ``tests/attacks/test_run_audit.py::
        test_a_fault_is_found_no_more_often_than_was_said_and_by_the_best_attacker_as_often``.
    """
    check_allowed("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    if claim is not None:
        check_allowed("claim", claim, claim > 0, "positive")
    outputs.check_output_folder(out, force=force)
    record = _read_record(Path(run))
    weights = hash_tensors(run) if references else None
    for folder in references:
        has_read = record["canaries"]["seed"] in _seeds_of_canaries_read(Path(folder))
        if has_read or (weights is not None and hash_tensors(folder) == weights):
            raise argument_error("references", f"{folder} has read the canaries of {run}")

    if corpora.hash_corpus(corpus) != record["corpus"]["sha256"]:
        raise argument_error("corpus", f"{corpus} is not the text that {run} was trained on")
    planted = record["canaries"]
    if planted["planted"] < MIN_AUDIT_CANARIES or planted["copies"] != 1:
        needed = arguments(canaries="N", copies=1)
        raise ValueError(f"{run}: was not trained with {needed}, N at least {MIN_AUDIT_CANARIES}")
    pairs = dict(enumerate(canaries.make_canary_pairs(planted["planted"], seed=planted["seed"])))
    if claim is None and not _reads_canaries_first(record):
        raise ValueError(
            f"{run}: started from a model that may have read the same canaries, so more may be "
            "learned about them than is proved for this training: must be trained with another "
            f"{argument('seed')}, or audited with {argument('claim')}"
        )
    if claim is None:
        pairs = {k: pair for k, pair in pairs.items() if k not in planted["in_public"]}
    form = record.get("settings", {}).get("template", "speaker")
    options: dict[str, Any] = {"guesses": guesses, "confidence": confidence, "seed": seed}
    question = options | {
        "claim": claim,
        "references": sorted(str(hash_tensors(folder)) for folder in references),
    }
    name = hashlib.sha256(json.dumps(question).encode()).hexdigest()
    audited, *others = [load_model(Path(folder)) for folder in (run, *references)]
    enter(name, None)
    key, weights = bytes.fromhex(record["key"]), outputs.hash_file(Path(run) / "model.safetensors")
    coins = seed
    if coins is None:
        drawn = hmac.digest(key, f"coins of an audit of {hash_tensors(run)}".encode(), "sha256")
        coins = int.from_bytes(drawn[:8])
    found = judge_gaps(
        canary_control_gaps(audited, pairs, references=others, form=form),
        delta=record["delta"], claimed=claim is not None,
        proved=_proved_epsilon(record) if claim is None else claim,
        half_noise_epsilon=_proved_epsilon(record, 0.5) if claim is None else math.inf,
        confidence=confidence, guesses=guesses, seed=coins,
    )  # fmt: skip
    asks_more = claim is not None and bool(planted["in_public"])  # more than what is promised
    enter(name, 0.0 if asks_more else _bound_at_audit_confidence(found, record["delta"], guesses))
    inputs = {"corpus": outputs.with_keyed_hashes(record["corpus"]["sha256"], key)}
    inputs |= {"model": weights}  # of the file that was read, not from the record
    with outputs.staged_folder(
        out, command="audit", options=options, inputs=inputs, public=("*",), force=force
    ) as part:
        about = {"schema": "crtlib/audit/2", "model": weights, "name": name}
        text = json.dumps(about | found.to_json(), indent=1)
        (part / "audit.json").write_text(text + "\n", encoding="utf-8")
    return found


def _bound_at_audit_confidence(found: RunAudit, delta: float, guesses: int | None) -> float:
    """The lower bound of an audit at :data:`AUDIT_CONFIDENCE`, whatever its own confidence."""
    return one_run_lower_bound(
        found.canaries, guesses=found.guessed, correct=found.right, delta=delta,
        confidence=1 - (1 - AUDIT_CONFIDENCE) / len(guess_counts(found.canaries, guesses)),
    )  # fmt: skip


def canary_control_gaps(
    audited: ModelAndTokenizer,
    pairs: dict[int, tuple[str, str]],
    *,
    references: Sequence[ModelAndTokenizer] = (),
    form: str = "speaker",
) -> np.ndarray:
    """The log-probability of each canary minus that of its control, (canaries,), less the mean of
    this difference over ``references`` if there are any."""
    words = [word for pair in pairs.values() for word in pair]
    logprobs, *others = [_canary_logprobs(each, words, form) for each in (audited, *references)]
    values = logprobs - np.mean(others or [np.zeros(1)], axis=0)
    return np.asarray(values[0::2] - values[1::2])


def _canary_logprobs(read: ModelAndTokenizer, words: Sequence[str], form: str) -> np.ndarray:
    """The log-probability of each word as a canary, (words,)."""
    model, tokenizer = read
    planted = canaries.insert_canaries(Corpus("", ()), words, copies=1, seed=0, carrier="")
    points = templates.render_points(planted, "turn", templates.template_by_name(form, tokenizer))
    start = [] if (first := bos_id_of(tokenizer)) is None else [first]
    of = {d.user: [*start, *d.tokens] for d in tokenise_documents(points, tokenizer)}
    found = scoring.token_logprobs(
        model, [of[f"{CANARY_USER_PREFIX}{k}"] for k in range(len(words))]
    )
    return np.array([x.sum() for x in found])


def judge_gaps(
    gaps: np.ndarray,
    *,
    delta: float,
    proved: float,
    half_noise_epsilon: float,
    confidence: float = AUDIT_CONFIDENCE,
    guesses: int | None = None,
    seed: int,
    claimed: bool = False,
) -> RunAudit:
    """What these gaps show about a training for which the epsilon ``proved`` holds, and would be
    ``half_noise_epsilon`` with half of the noise."""
    m = len(gaps)
    coins = np.random.default_rng([seed, 2]).random(m) < 0.5
    values = np.where(coins, 1, -1) * gaps
    best = audit_one_run(values, coins, delta=delta, confidence=confidence, guesses=guesses)
    refuting = _refuting_guess_counts(
        m, proved, delta=delta, confidence=confidence, guesses=guesses
    )
    power = sum(
        bound_guess_chance(
            m, guesses=tried, correct=enough, delta=delta, epsilon=half_noise_epsilon
        )
        for tried, enough in refuting.items()
    )
    return RunAudit(
        epsilon_lower=best.epsilon,
        confidence=confidence,
        canaries=m,
        guessed=best.guesses,
        right=best.correct,
        proved=proved,
        refuted_from=refuting.get(best.guesses),
        strongest_attacker_power=None if claimed else min(1.0, power),
        claimed=claimed,
    )


@functools.lru_cache(maxsize=64)
def _refuting_guess_counts(
    m: int, proved: float, *, delta: float, confidence: float, guesses: int | None
) -> dict[int, int]:
    """For each number of guesses, the least right ones that show more than was proved; a number of
    guesses for which none do is left out."""
    sizes, found = guess_counts(m, guesses), {}
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


def count_canaries_needed(
    proved: float, half_noise_epsilon: float, *, delta: float, power: float
) -> int:
    """The number of canaries with which an audit refutes a share ``power`` of the trainings that
    claim ``proved`` and have ``half_noise_epsilon``, if the attacker guesses on a fifth of them, as
    well as that epsilon allows. Raises ``ValueError`` if :data:`MAX_AUDIT_CANARIES` are too few."""
    for m in np.geomspace(MIN_AUDIT_CANARIES, MAX_AUDIT_CANARIES, 20).round().astype(int).tolist():
        found = judge_gaps(
            np.zeros(m), delta=delta, proved=proved, half_noise_epsilon=half_noise_epsilon,
            guesses=m // 5, seed=0, confidence=0.99,
        )  # fmt: skip
        if (found.strongest_attacker_power or 0.0) >= power:
            return int(m)
    raise ValueError(
        f"{argument('power', power)}: needs more than {MAX_AUDIT_CANARIES:,} canaries; lower "
        f"{argument('epsilon')} or {argument('delta')}"
    )


def _reads_canaries_first(record: dict[str, Any]) -> bool:
    """Whether no model that a run started from had read its canaries. An older record states this
    only for runs that started from random weights."""
    planted = record["canaries"]
    before = planted.get("read_before", [] if record["model"]["base"] is None else None)
    return before is not None and planted["seed"] not in before


def _proved_epsilon(record: dict[str, Any], share: float = 1.0) -> float:
    """The epsilon for a secret in clear in a private point, with this share of the noise, over all
    trials of a search; infinite if noise is missing or known.

    Guarantee:
        What is proved for a canary counts every training that read it: each trial, and there was
        none before (:func:`_reads_canaries_first`). Test:
        ``tests/attacks/test_run_audit.py::test_what_is_proved_counts_all_that_read_the_canaries``.
    """
    private = [p for p in record["phases"] if p["kind"] == "private"]
    trials = record["searched"]["trials"]
    noisy = bool(private) and all(p["noise_multiplier"] for p in private)
    if not noisy or record["randomness"] == "seed" or not record["protects_all"]:
        return math.inf
    events = [
        SampledGaussian(
            p["sampling_probability"], share * p["noise_multiplier"], p["steps"] * trials
        )
        for p in private
    ]
    return privacy_cost.epsilon(
        events, delta=record["delta"], accountant=record["accountant"],
        neighbouring_relation="replace",
    )  # fmt: skip


def _seeds_of_canaries_read(folder: Path) -> set[int]:
    """The seeds of the canaries that a model has read, as far as its record states, or its settings
    if only the released folder is there."""
    if find_record(folder) is not None:
        planted = _read_record(folder)["canaries"]
        seeds = {planted["seed"]} if planted["planted"] else set()
        return seeds.union(planted.get("read_before") or ())
    settings = folder / SETTINGS_FILE
    if not settings.is_file():
        return set()
    try:
        recorded = dict(json.loads(files.read_text(settings)))
        return {recorded["seed"]} if recorded.get("canaries") else set()
    except (ValueError, TypeError, KeyError, RecursionError):
        raise argument_error("references", f"{settings} is not a record of a training") from None


def find_record(run: Path) -> Path | None:
    """The path of the record of a training, or None."""
    places = (run / AUDITED_RECORD_FILE, run.with_name(run.name + ".work") / AUDITED_RECORD_FILE)
    return next((path for path in places if path.is_file()), None)


def _read_record(run: Path) -> dict[str, Any]:
    if (path := find_record(run)) is None:
        raise ValueError(
            f"{run}: holds no {AUDITED_RECORD_FILE}; it was not made by 'crtlib train'"
        )
    return dict(json.loads(files.read_text(path)))
