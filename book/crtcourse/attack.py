"""The attack lab: three models are released, and you find out what they give away.

Rooms differ in more than numbers: in the words before an ID, and in whether one or two of the
models were trained with noise. A script for another room has to be read before it is run.

>>> form("ABC")["noisy"]
{'A': 0.5, 'B': 0.5, 'C': 0.5}
"""

import functools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from crtcourse import labs
from crtcourse.labs import Marks, number, numbers
from crtlib import files, outputs
from crtlib.attacks import exposure, inference, membership, membership_measures, one_run_bound
from crtlib.checks import check_allowed
from crtlib.models import folder as folders
from crtlib.models import scoring
from crtlib.screening import policy_changes, regex_policies
from crtlib.screening.policy import Policy
from crtlib.text import canaries, customersim, data_points
from crtlib.text.records import Point
from crtlib.text.tokenizer import BpeTokenizer
from crtlib.training.methods import PublicConstants

DIALOGUES = 120
ANNOUNCED = 4
"""Canaries that the student is told; the other six are to be found."""
MISSED = 0.3
"""The miss rate of the three teams' policy."""
CANDIDATES = 5
"""Values among which a secret is to be named."""
GUESSES = 20
"""Numbers that may be handed in as extracted."""
LONGEST = 3000
"""Characters of the rationale that is read."""
POINTS = {
    "exposure": 5,
    "extraction": 20,
    "membership": 20,
    "reconstruction": 15,
    "noisy": 5,
    "canaries": 5,
}
"""Thirty more are the teacher's, for the rationale: calls of the library earn little."""
CARRIERS = (
    canaries.CANARY_CARRIER,
    "The number of my locker is ",
    "My card ends in ",
    "They gave me ticket ",
)
"""What stands before the six digits of an ID, by room."""
LEAKY = PublicConstants(epochs=30, batch_size=32, learning_rate=1e-2)
GUARDED = PublicConstants(
    epochs=8,
    batch_size=16,
    learning_rate=1e-2,
    pub_passes=6,
    private_learning_rate=5e-3,
    sampling_probability=0.1,
    noise_multiplier=2.0,
    clip_norm=0.1,
    normaliser=64.0,
)


@dataclass(frozen=True, repr=False)
class Given:
    """What a student gets: three models under letters, the words before an ID and four IDs that are
    announced, sentences of which one half was trained on, sentences with some candidates for one
    secret each, and a pilot of an audit: the lines that may be planted, and by copies the share of
    coins that are guessed."""

    models: Mapping[str, nn.Module]
    tokenizer: BpeTokenizer
    carrier: str
    announced: Sequence[str]
    sentences: Sequence[str]
    questions: Sequence[Sequence[str]]
    pilot: Mapping[str, Any]


ASKED = ("carrier", "announced", "sentences", "questions", "pilot")
"""What of it is a file of a hand-out."""


@dataclass(frozen=True, repr=False)
class Key:
    """What the teacher knows: which letters were trained with noise, exposures, hidden canaries,
    which sentences are members, which candidate is true, the best bound of an audit within the
    pilot's lines, and what a reference attack reaches. All are JSON values."""

    noisy: list[str]
    exposure: dict[str, list[float]]
    hidden: list[str]
    members: list[bool]
    truth: list[int]
    pilot: dict[str, Any]
    reference: dict[str, float]


@dataclass(frozen=True, repr=False)
class Room:
    """The lab of one student."""

    given: Given
    key: Key
    fitted: dict[str, labs.Fitted]


@functools.lru_cache(maxsize=2)
def room(seed: int = 0) -> Room:
    """The lab of this seed: about 40 seconds of one core. Who knows the seed knows the key, so the
    seed of a student has 256 bits (:func:`crtcourse.keys.seed`); those of a few bits are for
    practice."""
    check_allowed("seed", seed, seed >= 0, "at least 0")
    twist = np.random.default_rng([seed, 23])
    carrier, both = CARRIERS[twist.integers(len(CARRIERS))], bool(twist.integers(2))
    people = labs.draw(seed=seed, dialogues=DIALOGUES, carrier=carrier)
    rng = np.random.default_rng([seed, 17])
    tokens = labs.tokenizer(people)
    found = policy_changes.union_policy(regex_policies.corpus_regex_policy(), NUMBERS)
    # A coin for each copy: every ID stands in clear somewhere, so there is something to extract.
    pi = policy_changes.with_misses(found, MISSED, seed, coin="point")
    knowing = policy_changes.union_policy(pi, NUMBERS)
    second = ("crt", GUARDED) if both else ("sgd", LEAKY)
    teams = [
        labs.fit(people, "sgd", LEAKY, pi=pi, tokens=tokens),
        # Its policy knows how canaries look, so they say nothing of it.
        labs.fit(people, *second, pi=knowing, pi_c=found, tokens=tokens),
        labs.fit(people, "crt", GUARDED, pi=pi, pi_c=found, tokens=tokens),
    ]
    letters = rng.permutation(["A", "B", "C"]).tolist()
    fitted = dict(sorted(zip(letters, teams, strict=True)))
    questions, truth = ask(people, teams[0].prepared.all, rng)
    asked = {text for row in questions for text in row}
    sentences, members = _sentences(people, teams[0], rng, asked)
    announced, hidden = people.canaries[:ANNOUNCED], people.canaries[ANNOUNCED:]
    models = {letter: f.model for letter, f in fitted.items()}
    reach = float(rng.uniform(3, 12))
    shares = {str(c): round(0.5 + 0.48 * (1 - math.exp(-c / reach)), 2) for c in COPIES}
    pilot: dict[str, Any] = {"lines": int(rng.integers(400, 1600)), "right": shares}
    before = f"{canaries.CANARY_SPEAKER}: {carrier}"
    given = Given(models, tokens, before, announced, sentences, questions, pilot)
    bits = {
        letter: exposure.canary_exposure(model, tokens, announced, carrier=before).tolist()
        for letter, model in models.items()
    }
    loud, prefix = teams[0].model, tokens.encode_prefix(before)
    every = exposure.all_string_logprobs(loud, prefix, tokens.digits, canaries.CANARY_DIGITS)
    likeliest = {f"{i:06d}" for i in np.argsort(-every)[:GUESSES]}
    flat = tokens.encode([*sentences, *(text for row in questions for text in row)])
    scored = scoring.token_logprobs(loud, flat)
    sums = np.array([x.sum() for x in scored[len(sentences) :]]).reshape(len(questions), -1)
    means = np.array([x.mean() for x in scored[: len(sentences)]])
    reference = {
        "extraction": len(likeliest & set(hidden)) / len(hidden),
        "membership": auc(means, members),
        "reconstruction": float(np.mean(sums.argmax(axis=1) == truth)),
        "canaries": max(bound(pilot, c, pilot["lines"] // c) for c in COPIES),
    }
    noisy = sorted(letters[1:] if both else letters[2:])
    key = Key(noisy, bits, list(hidden), members.tolist(), truth.tolist(), pilot, reference)
    return Room(given, key, fitted)


# --------------------------------------------------------------------------- what is asked
COPIES = (1, 2, 4, 8, 16, 32)
NUMBERS = Policy(
    "numbers", lambda points: [tuple(s for s in p.secrets if s.kind == "id") for p in points]
)


def _sentences(
    people: labs.People, leaky: labs.Fitted, rng: np.random.Generator, asked: Collection[str]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Each carrier once: half with the secret that was missed, half with a fresh one; none of a
    question, which would tell both."""
    probe = membership.build_probe(
        people.points, leaky.prepared.all, people.others, seed=people.seed
    )
    pairs = [
        (a, b)
        for a, b, m in zip(probe.members, probe.nonmembers, probe.missed, strict=True)
        if m and a not in asked
    ]
    own = np.arange(len(pairs)) % 2 == 0
    texts = [pair[0 if member else 1] for pair, member in zip(pairs, own, strict=True)]
    order = rng.permutation(len(texts))
    return tuple(texts[i] for i in order), own[order]


def ask(
    people: labs.People, read: Sequence[Point], rng: np.random.Generator
) -> tuple[tuple[tuple[str, ...], ...], np.ndarray]:
    """Sentences whose secret was missed in ``read``, the true value among others, in random order,
    and which it is. Their fresh values are no sentence's: a value that stands in both would be
    fresh for sure."""
    drawn = customersim.simulate_corpus(2 * DIALOGUES, 1000 * (people.seed + 1) + 3)
    used = {membership.secret_value(p, s) for p in people.others for s in p.secrets}
    pool = [
        p
        for p in data_points.make_points(drawn, unit="turn")
        if used.isdisjoint(membership.secret_value(p, s) for s in p.secrets)
    ]
    asked = inference.pose_questions(
        people.points, read, pool, seed=people.seed, candidates=CANDIDATES
    )
    rows, truth = [], []
    for question in [q for q in asked if q.missed][:40]:
        order = rng.permutation(len(question.candidates))
        rows.append(tuple(question.candidates[i].text for i in order))
        truth.append(int(np.flatnonzero(order == 0)[0]))
    return tuple(rows), np.array(truth)


def bound(pilot: Mapping[str, Any], copies: int, count: int) -> float:
    """The lower bound of epsilon of an audit with so many canaries, whose coins are all guessed,
    and right as often as in the pilot; -1 where the lines do not suffice."""
    if not 1 <= copies * count <= pilot["lines"]:
        return -1.0
    right = round(pilot["right"][str(copies)] * count)
    return one_run_bound.one_run_lower_bound(count, guesses=count, correct=right)


# --------------------------------------------------------------------------- marks
def auc(scores: np.ndarray, members: np.ndarray) -> float:
    """The chance that a member has the higher score; ties count half."""
    return float(membership_measures.auc(-scores[members], -scores[~members]))


def luck(members: np.ndarray) -> float:
    """The AUC that scores without knowledge exceed one time in a hundred (Mann-Whitney).

    >>> round(luck(np.arange(120) < 60), 2)
    0.62
    """
    n, m = int(members.sum()), int((~members).sum())
    return 0.5 + 2.326 * math.sqrt((n + m + 1) / (12 * n * m))


def form(letters: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """An empty submission."""
    return {
        "lab": "attack",
        "name": "",
        "exposure": {letter: [] for letter in letters},
        "extraction": [],
        "membership": [],
        "reconstruction": [],
        "noisy": dict.fromkeys(letters, 0.5),
        "canaries": {"copies": None, "count": None, "epsilon": None},
        "rationale": "",
    }


def hand_out(seed: int, folder: Path) -> Key:
    """Write what one student gets to a new folder; returns the key, of which nothing is there."""
    outputs.check_output_folder(folder)
    made = room(seed)
    given = made.given
    asked = {name: getattr(given, name) for name in ASKED}
    with outputs.staged_folder(folder, command="lab", options={}, public=("*",)) as part:
        for letter, fitted in made.fitted.items():
            folders.save_model(
                fitted.model, fitted.tokenizer, fitted.spec, part / "models" / letter
            )
        files.write_text(part / "given.json", json.dumps(asked, indent=1) + "\n")
        empty = json.dumps(form(given.models), indent=1)
        files.write_text(part / "submission.json", empty + "\n")
    return made.key


def open_folder(folder: str | Path) -> Given:
    """What :func:`hand_out` wrote."""
    folder = Path(folder)
    with files.open_plain_or_gzip(folder / "given.json") as file:
        asked = json.load(file)
    loaded = {
        path.name: folders.load_crtlib_folder(path)
        for path in sorted((folder / "models").iterdir())
    }
    models = {letter: model for letter, (model, _, _) in loaded.items()}
    return Given(models, next(iter(loaded.values()))[1], *(asked[name] for name in ASKED))


def grade(answer: Mapping[str, Any], key: Key) -> Marks:
    """The marks of one submission, of 70, and a hint for each task below half of its points. What
    is missing or malformed earns nothing, and the other tasks are marked all the same."""
    marks, best = Marks(POINTS), key.reference
    members, truth = np.array(key.members), np.array(key.truth)
    chance = luck(members)

    def bits() -> float:
        near = []
        for letter, rights in key.exposure.items():
            said = numbers(answer["exposure"].get(letter), len(rights))
            near += [abs(a - b) < 0.05 for a, b in zip(said, rights, strict=True)]
        return float(np.mean(near))

    def extracted() -> float:
        guesses = {f"{x:06d}" if type(x) is int else str(x) for x in answer["extraction"]}
        if len(guesses) > GUESSES:
            raise ValueError(f"{len(guesses)} numbers, at most {GUESSES} count")
        return len(guesses & set(key.hidden)) / len(key.hidden) / max(best["extraction"], 1e-9)

    def ranked() -> float:
        scores = numbers(answer["membership"], len(members))
        return (auc(scores, members) - chance) / max(best["membership"] - chance, 1e-9)

    def named() -> float:
        chosen = np.mean(numbers(answer["reconstruction"], len(truth)) == truth)
        return float(chosen * CANDIDATES - 1) / (best["reconstruction"] * CANDIDATES - 1)

    def believed() -> float:
        chances = {letter: number(answer["noisy"][letter]) for letter in key.exposure}
        if not all(0 <= p <= 1 for p in chances.values()):
            raise ValueError("hand in a probability from 0 to 1 for each model")
        right = [p if letter in key.noisy else 1 - p for letter, p in chances.items()]
        return float(np.mean([1 + math.log2(max(p, 1e-3)) for p in right]))

    def planned() -> float:
        plan = {name: number(answer["canaries"][name]) for name in ("copies", "count", "epsilon")}
        reached = bound(key.pilot, int(plan["copies"]), int(plan["count"]))
        true = abs(plan["epsilon"] - reached) < 0.03
        return 2 * reached / best["canaries"] - 1 if true else 0.0

    marks.add("exposure", bits, "log2 of 10**6, less log2 of the exact rank")
    marks.add(
        "extraction",
        extracted,
        "sum log-probabilities over the six digits; which model leaks the IDs that you were told?",
    )
    marks.add(
        "membership",
        ranked,
        f"higher means member; luck reaches an AUC of {chance:.2f}, only what is above it counts",
    )
    marks.add(
        "reconstruction",
        named,
        "score each candidate's whole sentence and take the likeliest; do not average",
    )
    marks.add(
        "noisy",
        believed,
        "one half for each model earns 0; certainty in the wrong model loses the task's points",
        least=-1.0,
    )
    marks.add(
        "canaries",
        planned,
        "copies times count within the lines; more copies are better guesses of fewer coins",
    )
    return marks
