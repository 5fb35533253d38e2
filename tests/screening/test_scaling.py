"""Twice the input takes at most 2.3 times the CPU: no quadratic door in screening."""

import gc
import time
from collections.abc import Callable, Sequence

import pytest

from crtlib.screening import (
    cautious,
    deduplication,
    detection_recall,
    rates,
    regex_policies,
    tagger,
)
from crtlib.screening.policy import Policy
from crtlib.screening.preparation import prepare_points
from crtlib.text import data_points
from crtlib.text.records import Corpus, Dialogue, Point, Secret, Turn

MOST = 2.3


def secrets_in_a_turn(n: int) -> list[Point]:
    """One turn with n secrets, and the labels to it."""
    text = "call 555 now " * n
    spans = tuple(Secret("phone", 13 * i + 5, 13 * i + 8) for i in range(n))
    return [Point("d/0", "ann", text, spans)]


def turns_in_a_dialogue(n: int) -> tuple[Point, ...]:
    turns = tuple(
        Turn("USR", f"this is turn {i} of Ada", (Secret("name", 0, 4),)) for i in range(n)
    )
    return data_points.make_points(Corpus("long", (Dialogue("d", "ann", turns),)), unit="dialogue")


def short_turns(n: int) -> list[Point]:
    return [
        Point(f"{i}/0", f"u{i}", f"call {i} about {i * i} now", (Secret("id", 5, 6),))
        for i in range(n)
    ]


def long_line(n: int) -> list[Point]:
    """One line of about 100 n characters."""
    words = " ".join(f"Word{i} {i}-{i * i} aa, no. Ada Lovelace" for i in range(2 * n))
    return [Point("0/0", "ann", words[: 100 * n])]


def near_texts(n: int) -> list[Point]:
    return [Point(str(i), "u", " ".join(str(i * k) for k in range(7, 19))) for i in range(n)]


digits = regex_policies.corpus_regex_policy("wikitext2")


def prepared(points: Sequence[Point]) -> object:
    flags = digits(points)
    counted = rates.measure_rates(points, digits, digits, flags=flags, conservative_flags=flags)
    return (
        prepare_points(points, flags, flags),
        counted,
        detection_recall.recall_by_kind(points, flags),
    )


def tagged() -> Policy:
    return tagger.conservative_tagger_policy(tagger.train_tagger(short_turns(64), seed=0, epochs=1))


JOBS: dict[str, tuple[Callable, Callable, int]] = {
    "screen, secrets in a turn": (secrets_in_a_turn, prepared, 4_000),
    "screen, turns in a dialogue": (turns_in_a_dialogue, prepared, 4_000),
    "screen, turns": (short_turns, prepared, 4_000),
    "screen, a long line": (long_line, prepared, 5_000),
    "tagger, a long line": (long_line, tagged, 400),
    "tagger, turns": (short_turns, tagged, 1_500),
    "teaching a tagger, turns": (
        short_turns,
        lambda p: tagger.train_tagger(p, seed=0, epochs=1),
        1_500,
    ),
    "cautious, a long line": (long_line, cautious.cautious_policy(), 5_000),
    "exact": (near_texts, lambda p: deduplication.mark_repeats(p, "exact"), 60_000),
    "bloom": (near_texts, lambda p: deduplication.mark_repeats(p, "bloom"), 60_000),
    "near": (near_texts, lambda p: deduplication.mark_repeats(p, "near"), 1_500),
    "near, a long line": (long_line, lambda p: deduplication.mark_repeats(p, "near"), 8_000),
    **{
        f"regex:{corpus}, a long line": (
            long_line,
            regex_policies.corpus_regex_policy(corpus),
            2_500,
        )
        for corpus in regex_policies.REGEX_CORPORA
    },
}


def seconds(job: Callable, given: object) -> float:
    gc.disable()  # what it collects is that of other tests
    started = time.process_time()
    job(given)
    spent = time.process_time() - started
    gc.enable()
    return spent


def quadruples(job: Callable, once: object, four: object, tries: int = 12) -> tuple[float, float]:
    """The least times of both, measured in turn until they are in proportion.

    What others do on the machine only adds to a time, so a ratio that is never small enough is a
    fault of ours.
    """
    least = [float("inf"), float("inf")]
    for _ in range(tries):
        least = [min(least[k], seconds(job, given)) for k, given in enumerate((once, four))]
        if least[1] <= MOST**2 * least[0]:
            break
    return least[0], least[1]


def grows_too_fast(job: Callable, given: Callable[[int], object], n: int) -> list[tuple]:
    """Times of n and 4 n, and of 4 n and 16 n, if both are out of proportion; else nothing.

    A square is a square at every size, and further up only more so; one step, where the text
    outgrows a cache of the machine, is a step at one size.
    """
    times = []
    for few in (n, 4 * n):
        times.append(quadruples(job, given(few), given(4 * few)))
        if times[-1][1] <= MOST**2 * times[-1][0]:
            return []
    return times


@pytest.mark.parametrize("name", JOBS)
def test_twice_the_input_takes_twice_the_time(name):
    make, job, n = JOBS[name]
    if job is tagged:
        job = tagged()
    job(make(2))  # imports and caches
    assert not grows_too_fast(job, make, n // 2)


HOSTILE = {
    "digits": "1 ",
    "digits with commas": "1,",
    "dashes": "1-",
    "numerals": "one hundred ",
    "capitals": "Aa ",
    "capital letters": "A ",
    "a word": "a",
    "a capital word": "Aa",
    "letters": "A",
    "dollars": "$1",
    "unit": "Unit 1 Box ",
    "PSC": "PSC 1, ",
    "a street": "1 Aa Bb ",
    "a road": "Aa Road ",
    "doctors": "Dr. Aa ",
    "to whom": "to Aa ",
    "identity": "ID is: 1",
    "hyphens": "Aa-",
    "dots": "1.",
    "points": "A.",
    "post codes": "ab1 ",
    "phones": "01223 ",
    "brackets": "(555) ",
    "comma, state": "1 Aa, TX ",
}


@pytest.mark.parametrize("corpus", regex_policies.REGEX_CORPORA)
def test_no_repeated_piece_makes_an_expression_quadratic(corpus):
    policy = regex_policies.corpus_regex_policy(corpus)
    slow = {}
    for name, piece in HOSTILE.items():

        def repeated(k: int, piece: str = piece) -> list[Point]:
            return [Point("0", "u", piece * (k // len(piece)))]

        times = grows_too_fast(policy, repeated, 6_000)
        if times:
            slow[name] = times
    assert not slow


def test_the_test_sees_a_square():
    def square(points):
        return [a is b for a in points for b in points]

    assert len(grows_too_fast(square, range, 300)) == 2
