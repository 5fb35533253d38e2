"""The attack lab: three models are released, and you find out what they give away.

Rooms differ in more than numbers: in what three of the tasks require (``TASKS``), in the words
before an ID, and in whether one or two of the models were trained with noise. So a script that
earns all points in one room earns about half of them in another.

>>> make_empty_form("ABC")["noisy"]
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
from scipy.special import softmax
from torch import nn

from crtcourse import labs
from crtcourse.labs import Marks, read_number, read_numbers
from crtlib import files, outputs
from crtlib.attacks import exposure, inference, membership, membership_measures, one_run_bound
from crtlib.checks import check_allowed
from crtlib.models import model_folder, scoring
from crtlib.screening import policy_changes, regex_policies
from crtlib.screening.policy import Policy
from crtlib.text import canaries, customersim, data_points
from crtlib.text.records import Point
from crtlib.text.tokenizer import BpeTokenizer
from crtlib.training.methods import PublicConstants

DIALOGUES = 120
ANNOUNCED = 4
"""The number of canaries that the student is told; the other six are to be found."""
MISSED = 0.3
"""The miss rate of the policies of the three teams."""
CANDIDATES = 5
"""The number of values among which a secret is to be named."""
GUESSES = 20
"""The number of guesses that may be handed in for extraction."""
LONGEST = 3000
"""The number of characters of the rationale that are read."""
POINTS = {
    "exposure": 5,
    "extraction": 20,
    "membership": 20,
    "reconstruction": 15,
    "noisy": 5,
    "canaries": 5,
}
"""Thirty more are the teacher's, for the rationale: calling the library earns little."""
TASKS = {
    "extraction": {
        "free": "at most 20 numbers; each ID among them that you were not told counts, and a wrong "
        "number costs nothing",
        "costly": "at most 20 numbers; each ID among them that you were not told counts, and every "
        "other number costs a quarter of what an ID earns",
    },
    "membership": {
        "scores": "one score for each sentence, higher for 'was trained on'; the area under the "
        "ROC curve counts",
        "surest": "the places, from 0, of the ten sentences that were most surely trained on; a "
        "wrong one costs as much as a right one earns",
        "pairs": "sentences 0 and 1 are a pair, 2 and 3 are the next, and of each pair one was "
        "trained on: for each pair, in order, the place of that sentence",
    },
    "reconstruction": {
        "place": "for each question the place, from 0 to 4, of the true sentence",
        "odds": "for each question a list of five probabilities, one for each sentence; the "
        "logarithm of the true one's probability counts",
    },
}
"""What three tasks require: each room has one kind of each, and describes it in words."""
SUREST = 10
LEAST = 0.1
"""The reference attack counts as reaching at least this: where it fails, luck earns few marks."""
CARRIERS = (
    canaries.CANARY_CARRIER,
    "The number of my locker is ",
    "My card ends in ",
    "They gave me ticket ",
)
"""The words before the six digits of an ID, by room."""
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
    """What a student gets: three models under letters; what the tasks of the room require; the
    words before an ID and four IDs that are announced; sentences, half of which were trained on;
    sentences with some candidates for one secret each; and a pilot of an audit, which has the lines
    that may be planted and, by copies, the share of coins that are guessed."""

    models: Mapping[str, nn.Module]
    tokenizer: BpeTokenizer
    tasks: Mapping[str, str]
    carrier: str
    announced: Sequence[str]
    sentences: Sequence[str]
    questions: Sequence[Sequence[str]]
    pilot: Mapping[str, Any]


ASKED = ("tasks", "carrier", "announced", "sentences", "questions", "pilot")
"""The parts of it that are files of a hand-out."""


@dataclass(frozen=True, repr=False)
class Key:
    """What the teacher knows: the kind of each task, which letters were trained with noise, the
    exposures, the hidden canaries, which sentences are members, which candidate is true, the best
    bound of an audit within the pilot's lines, and what a reference attack reaches. All are JSON
    values."""

    tasks: dict[str, str]
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
def draw_room(seed: int = 0) -> Room:
    """The lab for this seed; it takes about 40 seconds of one core. Whoever knows the seed knows
    the key, so a student's seed has 256 bits (:func:`crtcourse.keys.derive_seed`). Seeds of a few
    bits are for practice."""
    check_allowed("seed", seed, seed >= 0, "at least 0")
    room_rng = np.random.default_rng([seed, 23])
    carrier = CARRIERS[room_rng.integers(len(CARRIERS))]
    two_noisy = bool(room_rng.integers(2))
    tasks = {task: str(room_rng.choice(list(kinds))) for task, kinds in TASKS.items()}
    people = labs.draw_people(seed=seed, dialogues=DIALOGUES, carrier=carrier)
    rng = np.random.default_rng([seed, 17])
    tokens = labs.train_tokenizer(people)
    finding_policy = policy_changes.union_policy(regex_policies.corpus_regex_policy(), NUMBERS)
    # A coin for each copy: every ID is in clear somewhere, so there is something to extract.
    pi = policy_changes.with_misses(finding_policy, MISSED, seed, coin="point")
    knowing = policy_changes.union_policy(pi, NUMBERS)
    second = ("crt", GUARDED) if two_noisy else ("sgd", LEAKY)
    teams = [
        labs.fit_model(people, "sgd", LEAKY, pi=pi, tokens=tokens),
        # Its policy knows the form of canaries, so their exposure reveals nothing.
        labs.fit_model(people, *second, pi=knowing, pi_c=finding_policy, tokens=tokens, team=1),
        labs.fit_model(people, "crt", GUARDED, pi=pi, pi_c=finding_policy, tokens=tokens, team=2),
    ]
    letters = rng.permutation(["A", "B", "C"]).tolist()
    fitted = dict(sorted(zip(letters, teams, strict=True)))
    questions, truth = pose_candidates(people, teams[0].prepared.all, rng)
    question_texts = {text for row in questions for text in row}
    paired = tasks["membership"] == "pairs"
    sentences, members = _draw_sentences(people, teams[0], rng, question_texts, paired=paired)
    announced, hidden = people.canaries[:ANNOUNCED], people.canaries[ANNOUNCED:]
    models = {letter: f.model for letter, f in fitted.items()}
    reach = float(rng.uniform(3, 12))
    shares = {str(c): round(0.5 + 0.48 * (1 - math.exp(-c / reach)), 2) for c in COPIES}
    pilot: dict[str, Any] = {"lines": int(rng.integers(400, 1600)), "right": shares}
    before = f"{canaries.CANARY_SPEAKER}: {carrier}"
    task_texts = {task: TASKS[task][kind] for task, kind in tasks.items()}
    material = Given(models, tokens, task_texts, before, announced, sentences, questions, pilot)
    bits = {
        letter: exposure.canary_exposure(model, tokens, announced, carrier=before).tolist()
        for letter, model in models.items()
    }
    noisy = sorted(letters[1:] if two_noisy else letters[2:])
    reference = _score_reference_attack(teams[0].model, material, tasks, hidden, members, truth)
    key = Key(tasks, noisy, bits, list(hidden), members.tolist(), truth.tolist(), pilot, reference)
    return Room(material, key, fitted)


def _score_reference_attack(
    model: nn.Module,
    given: Given,
    kinds: Mapping[str, str],
    hidden: Collection[str],
    members: np.ndarray,
    truth: np.ndarray,
) -> dict[str, float]:
    """What the reference attack reaches in each task, as a share of the task's points.

    Args:
        model: The model that leaks most.
        given: What the student gets.
        kinds: The kind of each task.
        hidden: The canaries that are to be found.
        members: Which sentences were trained on.
        truth: The place of the true candidate of each question.
    """
    prefix = given.tokenizer.encode_prefix(given.carrier)
    digits = given.tokenizer.digits
    logprobs = exposure.all_string_logprobs(model, prefix, digits, canaries.CANARY_DIGITS)
    likeliest = [f"{number:06d}" for number in np.argsort(-logprobs)[:GUESSES]]
    new = [number for number in likeliest if number not in given.announced]
    guess_counts = range(1, len(new) + 1) if kinds["extraction"] == "costly" else [len(new)]

    texts = [*given.sentences, *(text for row in given.questions for text in row)]
    token_logprobs = scoring.token_logprobs(model, given.tokenizer.encode(texts))
    sentence_count = len(given.sentences)
    means = np.array([of_text.mean() for of_text in token_logprobs[:sentence_count]])
    sums = np.array([of_text.sum() for of_text in token_logprobs[sentence_count:]])
    sums = sums.reshape(len(given.questions), -1)
    answers = softmax(sums, axis=1) if kinds["reconstruction"] == "odds" else sums.argmax(axis=1)
    lines = given.pilot["lines"]
    return {
        "extraction": max(
            score_extraction(new[:count], hidden, kinds["extraction"]) for count in guess_counts
        ),
        "membership": score_membership(
            answer_membership(means, kinds["membership"]), members, kinds["membership"]
        ),
        "reconstruction": score_reconstruction(answers, truth, kinds["reconstruction"]),
        "canaries": max(
            lower_bound_of_audit(given.pilot, copies, lines // copies) for copies in COPIES
        ),
    }


# --------------------------------------------------------------------------- what is asked
COPIES = (1, 2, 4, 8, 16, 32)
NUMBERS = Policy(
    "numbers",
    lambda points: [tuple(s for s in p.secrets if s.kind == "id") for p in points],
    reads_labels=True,
)


def _draw_sentences(
    people: labs.People,
    leaky: labs.Fitted,
    rng: np.random.Generator,
    question_texts: Collection[str],
    *,
    paired: bool,
) -> tuple[tuple[str, ...], np.ndarray]:
    """The sentences of the task on members, and which of them are: each carrier once, half with the
    secret that was missed, half with a fresh one.

    Args:
        people: The text of the room.
        leaky: The model whose training text the members are from.
        rng: Draws the order.
        question_texts: Sentences of the other tasks, which are left out: they would reveal both.
        paired: Each carrier twice instead, with either secret, in random order.
    """
    probe = membership.build_probe(
        people.points, leaky.prepared.all, people.others, seed=people.seed
    )
    pairs = [
        (member_text, other_text)
        for member_text, other_text, missed in zip(
            probe.members, probe.nonmembers, probe.missed, strict=True
        )
        if missed and member_text not in question_texts
    ]
    if paired:
        first = rng.integers(2, size=len(pairs)) == 0
        texts = [
            text
            for pair, member_first in zip(pairs, first, strict=True)
            for text in (pair if member_first else pair[::-1])
        ]
        return tuple(texts), np.stack([first, ~first], axis=1).ravel()
    are_members = np.arange(len(pairs)) % 2 == 0
    texts = [pair[0 if member else 1] for pair, member in zip(pairs, are_members, strict=True)]
    order = rng.permutation(len(texts))
    return tuple(texts[i] for i in order), are_members[order]


def pose_candidates(
    people: labs.People, read_points: Sequence[Point], rng: np.random.Generator
) -> tuple[tuple[tuple[str, ...], ...], np.ndarray]:
    """Sentences whose secret was missed in ``read_points``, each with the true value among others
    in random order, and which one is true. Their fresh values are not those of the sentences of the
    task on members: a value in both tasks would certainly be fresh."""
    corpus = customersim.simulate_corpus(2 * DIALOGUES, 1000 * (people.seed + 1) + 3)
    used = {membership.secret_value(p, s) for p in people.others for s in p.secrets}
    pool = [
        p
        for p in data_points.make_points(corpus, unit="turn")
        if used.isdisjoint(membership.secret_value(p, s) for s in p.secrets)
    ]
    questions = inference.pose_questions(
        people.points, read_points, pool, seed=people.seed, candidates=CANDIDATES
    )
    rows, truth = [], []
    for question in [q for q in questions if q.missed][:40]:
        order = rng.permutation(len(question.candidates))
        rows.append(tuple(question.candidates[i].text for i in order))
        truth.append(int(np.flatnonzero(order == 0)[0]))
    return tuple(rows), np.array(truth)


def lower_bound_of_audit(pilot: Mapping[str, Any], copies: int, count: int) -> float:
    """The lower bound of epsilon from an audit with ``count`` canaries whose coins are all guessed,
    and as often correctly as in the pilot; -1 where there are not enough lines."""
    if not 1 <= copies * count <= pilot["lines"]:
        return -1.0
    right = round(pilot["right"][str(copies)] * count)
    return one_run_bound.one_run_lower_bound(count, guesses=count, correct=right)


# --------------------------------------------------------------------------- marks
def auc(scores: np.ndarray, members: np.ndarray) -> float:
    """The chance that a member has the higher score; ties count half."""
    return float(membership_measures.auc(-scores[members], -scores[~members]))


def score_extraction(guesses: Collection[str], hidden: Collection[str], kind: str) -> float:
    """The share of the hidden IDs that are among the guesses. Where wrong guesses are ``costly``,
    each of them takes away a quarter of a right one.

    >>> score_extraction(["1", "2", "3"], ["1", "4"], "free")
    0.5
    >>> score_extraction(["1", "2"], ["1"], "costly")
    0.75
    """
    right = len(set(guesses) & set(hidden))
    lost = (len(set(guesses)) - right) / 4 if kind == "costly" else 0.0
    return (right - lost) / len(hidden)


def answer_membership(scores: np.ndarray, kind: str) -> np.ndarray:
    """The answer that a task about members requires, from a score for each sentence."""
    if kind == "pairs":
        return 2 * np.arange(len(scores) // 2) + scores.reshape(-1, 2).argmax(axis=1)
    return np.argsort(-scores)[:SUREST] if kind == "surest" else scores


def score_membership(answer: np.ndarray, members: np.ndarray, kind: str) -> float:
    """How far the answer is above luck, from 0 to 1. For scores it is the AUC above
    :func:`auc_by_luck`; for places, the correct ones less the wrong ones."""
    if kind == "scores":
        chance = auc_by_luck(members)
        return (auc(answer, members) - chance) / (1 - chance)
    indices = answer.astype(int)
    distinct = set(indices.tolist())
    if not distinct <= set(range(len(members))) or len(distinct) < len(answer):
        raise ValueError(f"hand in different places from 0 to {len(members) - 1}")
    if kind == "pairs" and (indices // 2 != np.arange(len(indices))).any():
        raise ValueError("the first place is 0 or 1, the second 2 or 3, and so on")
    return float(2 * members[indices].mean() - 1)


def score_reconstruction(answer: np.ndarray, truth: np.ndarray, kind: str) -> float:
    """How far the answer is above luck, from 0 to 1: correct places, or the logarithm of the true
    candidate's probability, with the number of candidates as its base."""
    if kind == "place":
        return float(np.mean(answer == truth) * CANDIDATES - 1) / (CANDIDATES - 1)
    true = np.maximum(answer[np.arange(len(truth)), truth], 1e-3)
    return float(1 + np.mean(np.log(true)) / math.log(CANDIDATES))


def auc_by_luck(members: np.ndarray) -> float:
    """The AUC that scores without knowledge exceed once in a hundred times (Mann-Whitney).

    >>> round(auc_by_luck(np.arange(120) < 60), 2)
    0.62
    """
    member_count, other_count = int(members.sum()), int((~members).sum())
    total = member_count + other_count
    return 0.5 + 2.326 * math.sqrt((total + 1) / (12 * member_count * other_count))


def make_empty_form(letters: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
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
    """Write what one student gets to a new folder. Return the key, no part of which is in it."""
    outputs.check_output_folder(folder)
    lab_room = draw_room(seed)
    given = lab_room.given
    contents = {name: getattr(given, name) for name in ASKED}
    with outputs.staged_folder(folder, command="lab", options={}, public=("*",)) as staged:
        for letter, fitted in lab_room.fitted.items():
            model_folder.save_model(
                fitted.model, fitted.tokenizer, fitted.spec, staged / "models" / letter
            )
        files.write_text(staged / "given.json", json.dumps(contents, indent=1) + "\n")
        empty = json.dumps(make_empty_form(given.models), indent=1)
        files.write_text(staged / "submission.json", empty + "\n")
    return lab_room.key


def open_folder(folder: str | Path) -> Given:
    """What :func:`hand_out` wrote."""
    folder = Path(folder)
    with files.open_plain_or_gzip(folder / "given.json") as file:
        contents = json.load(file)
    loaded = {
        path.name: model_folder.load_saved_model(path)
        for path in sorted((folder / "models").iterdir())
    }
    models = {letter: model for letter, (model, _, _) in loaded.items()}
    return Given(models, next(iter(loaded.values()))[1], *(contents[name] for name in ASKED))


def grade_answer(answer: Mapping[str, Any], key: Key) -> Marks:
    """The marks of one submission, out of 70, by what the tasks of its room require, and a hint for
    each task below half of its points. A missing or malformed answer earns nothing, and the other
    tasks are marked all the same."""
    marks = Marks(POINTS)
    kinds = key.tasks
    best = {task: max(reached, LEAST) for task, reached in key.reference.items()}
    members, truth = np.array(key.members), np.array(key.truth)
    chance = auc_by_luck(members)

    def grade_exposure() -> float:
        near = []
        for letter, rights in key.exposure.items():
            answers = read_numbers(answer["exposure"].get(letter), len(rights))
            near += [abs(a - b) < 0.05 for a, b in zip(answers, rights, strict=True)]
        return float(np.mean(near))

    def grade_extraction() -> float:
        guesses = {f"{x:06d}" if type(x) is int else str(x) for x in answer["extraction"]}
        if len(guesses) > GUESSES:
            raise ValueError(f"{len(guesses)} numbers, at most {GUESSES} count")
        return score_extraction(guesses, key.hidden, kinds["extraction"]) / best["extraction"]

    def grade_membership() -> float:
        kind = kinds["membership"]
        wanted = {"scores": len(members), "pairs": len(members) // 2, "surest": SUREST}[kind]
        answers = read_numbers(answer["membership"], wanted)
        return score_membership(answers, members, kind) / best["membership"]

    def grade_reconstruction() -> float:
        kind = kinds["reconstruction"]
        odds_or_places = answer["reconstruction"]
        if kind == "place":
            share = score_reconstruction(read_numbers(odds_or_places, len(truth)), truth, kind)
        else:
            rows = odds_or_places if isinstance(odds_or_places, list) else []
            odds = np.array([read_numbers(row, CANDIDATES) for row in rows])
            if len(odds) != len(truth):
                raise ValueError(f"hand in {len(truth)} lists of {CANDIDATES} probabilities")
            if (odds < 0).any() or (abs(odds.sum(axis=1) - 1) > 0.01).any():
                raise ValueError("each list holds probabilities that sum to 1")
            share = score_reconstruction(odds, truth, kind)
        return share / best["reconstruction"]

    def grade_beliefs() -> float:
        chances = {letter: read_number(answer["noisy"][letter]) for letter in key.exposure}
        if not all(0 <= p <= 1 for p in chances.values()):
            raise ValueError("hand in a probability from 0 to 1 for each model")
        right = [p if letter in key.noisy else 1 - p for letter, p in chances.items()]
        return float(np.mean([1 + math.log2(max(p, 1e-3)) for p in right]))

    def grade_canaries() -> float:
        plan = {
            name: read_number(answer["canaries"][name]) for name in ("copies", "count", "epsilon")
        }
        reached = lower_bound_of_audit(key.pilot, int(plan["copies"]), int(plan["count"]))
        true = abs(plan["epsilon"] - reached) < 0.03
        return 2 * reached / best["canaries"] - 1 if true else 0.0

    marks.add("exposure", grade_exposure, "log2 of 10**6, less log2 of the exact rank")
    marks.add(
        "extraction",
        grade_extraction,
        "sum log-probabilities over the six digits; which model leaks the IDs that you were told?"
        + " Hand in no more numbers than you would bet on." * (kinds["extraction"] == "costly"),
    )
    marks.add(
        "membership",
        grade_membership,
        f"higher means member; luck reaches an AUC of {chance:.2f}, only what is above it counts"
        if kinds["membership"] == "scores"
        else "a mean over a sentence's tokens is fair among sentences, a sum is not",
    )
    marks.add(
        "reconstruction",
        grade_reconstruction,
        "score each candidate's whole sentence and take the likeliest; do not average"
        if kinds["reconstruction"] == "place"
        else "score each candidate's whole sentence; e to the power of the sums, scaled to 1",
    )
    marks.add(
        "noisy",
        grade_beliefs,
        "one half for each model earns 0; certainty in the wrong model loses the task's points",
        least=-1.0,
    )
    marks.add(
        "canaries",
        grade_canaries,
        "copies times count within the lines; more copies are better guesses of fewer coins",
    )
    return marks
