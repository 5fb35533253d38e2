"""The attack lab: two models leave the house, and you find out what they give away.

>>> sorted(form(["A", "B"]))
['exposure', 'extraction', 'lab', 'membership', 'name', 'noisy', 'reconstruction']
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from crtcourse import labs
from crtcourse.marks import Marks, clipped, number, numbers, share
from crtlib import files, outputs
from crtlib.attacks import exposure, inference, membership
from crtlib.checks import check
from crtlib.models import folder as folders
from crtlib.models import scoring
from crtlib.screening import policies
from crtlib.text import canaries
from crtlib.text.tokenizer import Bpe
from crtlib.training.methods import Constants

DIALOGUES = 120
ANNOUNCED = 4
"""Canaries that the student is told; the other six are to be found."""
MISSED = 0.3
"""The miss rate of both teams' policy."""
CANDIDATES = 5
"""Values among which a secret is to be named."""
GUESSES = 20
"""Numbers that may be handed in as extracted."""
POINTS = {
    "exposure": 15,
    "extraction": 25,
    "membership": 25,
    "reconstruction": 20,
    "noisy": 15,
}
LEAKY = Constants(epochs=30, batch_size=32, learning_rate=1e-2)
GUARDED = Constants(
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


@dataclass(frozen=True)
class Given:
    """What a student gets: two models under letters, four announced canaries, sentences of which
    one half was trained on, and sentences with some candidates for one secret each."""

    models: Mapping[str, nn.Module] = field(repr=False)
    tokenizer: Bpe = field(repr=False)
    announced: tuple[str, ...]
    sentences: tuple[str, ...] = field(repr=False)
    questions: tuple[tuple[str, ...], ...] = field(repr=False)


@dataclass(frozen=True)
class Key:
    """What the instructor knows: which letter was trained with noise, the canaries, which
    sentences are members, which candidate is true, and what a reference attack reaches."""

    noisy: str
    exposure: dict[str, list[float]]
    hidden: tuple[str, ...]
    members: np.ndarray = field(repr=False)
    truth: np.ndarray = field(repr=False)
    reference: dict[str, float]


@dataclass(frozen=True)
class Room:
    """One class of the lab."""

    given: Given
    key: Key = field(repr=False)
    fitted: dict[str, labs.Fitted] = field(repr=False)


@functools.lru_cache(maxsize=2)
def room(seed: int = 0) -> Room:
    """The class of this seed: about 30 seconds of one core. Who knows the seed knows the key."""
    check("seed", seed, seed >= 0, "at least 0")
    people = labs.draw(seed=seed, dialogues=DIALOGUES)
    rng = np.random.default_rng([seed, 17])
    tokens = labs.tokenizer(people)
    pi = policies.miss(policies.regex(), MISSED, seed)
    leaky = labs.fit(people, "sgd", LEAKY, pi=pi, tokens=tokens)
    guarded = labs.fit(people, "crt", GUARDED, pi=pi, tokens=tokens)
    letters = ["A", "B"] if rng.random() < 0.5 else ["B", "A"]
    fitted = dict(sorted(zip(letters, (leaky, guarded), strict=True)))
    sentences, members = _sentences(people, leaky, rng)
    questions, truth = _questions(people, leaky, rng)
    announced = people.canaries[:ANNOUNCED]
    models = {letter: f.model for letter, f in fitted.items()}
    given = Given(models, tokens, announced, sentences, questions)
    bits = {
        letter: exposure.canary_exposure(model, tokens, announced).tolist()
        for letter, model in models.items()
    }
    hidden = people.canaries[ANNOUNCED:]
    key = Key(letters[1], bits, hidden, members, truth, {})
    best = {
        "extraction": share(set(extract(leaky.model, tokens)) & set(hidden), hidden),
        "membership": auc(sentence_scores(leaky.model, tokens, sentences), members),
        "reconstruction": float(np.mean(reconstruct(leaky.model, tokens, questions) == truth)),
    }
    return Room(given, replace(key, reference=best), fitted)


# --------------------------------------------------------------------------- what is asked
def _sentences(
    people: labs.People, leaky: labs.Fitted, rng: np.random.Generator
) -> tuple[tuple[str, ...], np.ndarray]:
    """Each carrier once: half with the secret that was missed, half with a fresh one."""
    probe = membership.probe(people.points, leaky.prepared.all, people.others, seed=people.seed)
    pairs = [
        (a, b) for a, b, m in zip(probe.members, probe.nonmembers, probe.missed, strict=True) if m
    ]
    own = np.arange(len(pairs)) % 2 == 0
    texts = [pair[0 if member else 1] for pair, member in zip(pairs, own, strict=True)]
    order = rng.permutation(len(texts))
    return tuple(texts[i] for i in order), own[order]


def _questions(
    people: labs.People, leaky: labs.Fitted, rng: np.random.Generator
) -> tuple[tuple[tuple[str, ...], ...], np.ndarray]:
    """Sentences whose secret was missed, the true value among others, in random order."""
    asked = inference.questions(
        people.points, leaky.prepared.all, people.others, seed=people.seed, candidates=CANDIDATES
    )
    rows, truth = [], []
    for question in [q for q in asked if q.missed][:40]:
        order = rng.permutation(len(question.candidates))
        rows.append(tuple(question.candidates[i].text for i in order))
        truth.append(int(np.flatnonzero(order == 0)[0]))
    return tuple(rows), np.array(truth)


# --------------------------------------------------------------------------- a reference attack
def extract(model: nn.Module, tokens: Bpe, most: int = GUESSES) -> list[str]:
    """The likeliest six-digit numbers after the carrier, the likeliest first."""
    before = tokens.encode_prefix(canaries.prefix())
    scores = exposure.all_logprobs(model, before, tokens.digits, canaries.DIGITS)
    return [f"{i:06d}" for i in np.argsort(-scores, kind="stable")[:most]]


def sentence_scores(model: nn.Module, tokens: Bpe, sentences: Sequence[str]) -> np.ndarray:
    """The mean log-likelihood of a token, ``(n,)``: higher where the model knows the sentence."""
    return np.array([x.mean() for x in scoring.token_logprobs(model, tokens.encode(sentences))])


def reconstruct(model: nn.Module, tokens: Bpe, questions: Sequence[Sequence[str]]) -> np.ndarray:
    """Of each question the place of its likeliest candidate, ``(n,)``."""
    flat = [text for row in questions for text in row]
    totals = [x.sum() for x in scoring.token_logprobs(model, tokens.encode(flat))]
    return np.array(totals).reshape(len(questions), -1).argmax(axis=1)


def auc(scores: np.ndarray, members: np.ndarray) -> float:
    """The chance that a member has the higher score; ties count half."""
    return float(membership.auc(-scores[members], -scores[~members]))


def luck(members: np.ndarray) -> float:
    """The AUC that scores without knowledge exceed one time in a hundred (Mann-Whitney).

    >>> round(luck(np.arange(120) < 60), 2)
    0.62
    """
    n, m = int(members.sum()), int((~members).sum())
    return 0.5 + 2.326 * math.sqrt((n + m + 1) / (12 * n * m))


def solve(given: Given, name: str = "reference") -> dict[str, Any]:
    """A submission that follows the instructions, and nothing else: no key."""
    highest = {
        letter: exposure.canary_exposure(model, given.tokenizer, given.announced)
        for letter, model in given.models.items()
    }
    leaky = max(highest, key=lambda letter: float(highest[letter].mean()))
    model, tokens = given.models[leaky], given.tokenizer
    answer = form(given.models) | {"name": name}
    answer["exposure"] = {letter: bits.round(3).tolist() for letter, bits in highest.items()}
    answer["extraction"] = extract(model, tokens)
    answer["membership"] = sentence_scores(model, tokens, given.sentences).round(6).tolist()
    answer["reconstruction"] = reconstruct(model, tokens, given.questions).tolist()
    answer["noisy"] = {letter: 0.02 if letter == leaky else 0.98 for letter in given.models}
    return answer


# --------------------------------------------------------------------------- hand out, grade
def form(letters: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """An empty submission."""
    return {
        "lab": "attack",
        "name": "",
        "exposure": {letter: [] for letter in letters},
        "extraction": [],
        "membership": [],
        "reconstruction": [],
        "noisy": {letter: 0.5 for letter in letters},
    }


def hand_out(seed: int, folder: Path) -> Path:
    """Write what the students of a class get; returns the folder. The seed is the key: keep it."""
    outputs.check_folder(folder)
    made = room(seed)
    given = made.given
    asked = {
        "announced": given.announced,
        "sentences": given.sentences,
        "questions": given.questions,
    }
    with outputs.staged(folder, command="lab", options={}, public=("*",)) as part:
        for letter, fitted in made.fitted.items():
            folders.save(fitted.model, fitted.tokenizer, fitted.spec, part / "models" / letter)
        files.write_text(part / "given.json", json.dumps(asked, indent=1) + "\n")
        empty = json.dumps(form(given.models), indent=1)
        files.write_text(part / "submission.json", empty + "\n")
    return folder


def open_folder(folder: str | Path) -> Given:
    """What :func:`hand_out` wrote."""
    folder = Path(folder)
    with files.reading(folder / "given.json") as file:
        asked = json.load(file)
    paths = sorted((folder / "models").iterdir())
    loaded = {path.name: folders.ours(path) for path in paths}
    tokens = next(iter(loaded.values()))[1]
    questions = tuple(map(tuple, asked["questions"]))
    models = {letter: model for letter, (model, _, _) in loaded.items()}
    announced, sentences = tuple(asked["announced"]), tuple(asked["sentences"])
    return Given(models, tokens, announced, sentences, questions)


def grade(answer: Mapping[str, Any], key: Key) -> Marks:
    """The marks of one submission out of 100, and a hint for each task below half of its points.

    Raises ``ValueError`` for a malformed submission.
    """
    marks = Marks(POINTS)
    bits = answer["exposure"]
    right = [
        abs(number(a) - b) < 0.05
        for letter, truth in key.exposure.items()
        for a, b in zip(bits.get(letter) or [-1] * len(truth), truth, strict=True)
    ]
    marks.add("exposure", float(np.mean(right)), "log2 of 10**6, less log2 of the exact rank")
    guesses = list(dict.fromkeys(map(str, answer["extraction"])))
    if len(guesses) > GUESSES:
        raise ValueError(f"extraction: {len(guesses)} numbers, at most {GUESSES} count")
    found = share(set(guesses) & set(key.hidden), key.hidden)
    marks.add(
        "extraction",
        clipped(found / max(key.reference["extraction"], 1e-9)),
        "sum log-probabilities over the six digits; which of the models is the loud one?",
    )
    scores = numbers(answer["membership"], len(key.members))
    chance = luck(key.members)
    area = 0.5 if scores is None else auc(scores, key.members)
    marks.add(
        "membership",
        clipped((area - chance) / max(key.reference["membership"] - chance, 1e-9)),
        f"higher means member; luck reaches an AUC of {chance:.2f}, only what is above it counts",
    )
    chosen = numbers(answer["reconstruction"], len(key.truth))
    named = 1 / CANDIDATES if chosen is None else float(np.mean(chosen == key.truth))
    marks.add(
        "reconstruction",
        clipped((named * CANDIDATES - 1) / (key.reference["reconstruction"] * CANDIDATES - 1)),
        "score each candidate's whole sentence and take the likeliest; do not average",
    )
    marks.add(
        "noisy",
        float(1 + np.log2(max(_belief(answer["noisy"], key.noisy), 1e-3))),
        "half and half scores nothing, and to be sure of the wrong model costs as much",
        least=-1.0,
    )
    return marks


def _belief(said: Mapping[str, Any], noisy: str) -> float:
    """What a submission gives to the model that was trained with noise, of 1 in all."""
    chances = {letter: clipped(number(p)) for letter, p in said.items()}
    return chances.get(noisy, 0.5) / max(sum(chances.values()), 1e-9)
