"""The bound of all secrets, against the truth of draws whose share is known."""

import numpy as np
import pytest

from confide.screening.corpus import _notes_of_all_secrets
from crtlib.screening.rates import RateCounter
from crtlib.screening.regex_policies import none_policy
from crtlib.screening.secret_shares import CAPS, bound_share_of_secrets
from crtlib.text.records import Point, Secret

# Secrets of a message, its chance to be drawn, and how many of its secrets fail.
TEXTS = {
    "one a message": [(1, 0.8, 0), (1, 0.2, 1)],
    "signatures fail": [(1, 0.7, 0), (1, 0.1, 1), (8, 0.1, 8), (8, 0.1, 5)],
    "signatures are found": [(1, 0.5, 0), (1, 0.3, 1), (8, 0.2, 0)],
    "rare and large": [(1, 0.95, 0), (20, 0.05, 20)],
    "none fails": [(2, 1.0, 0)],
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_bound_covers_the_share_of_all_secrets(name):
    held, chance, fails = map(np.array, zip(*TEXTS[name], strict=True))
    truth = (chance * fails).sum() / (chance * held).sum()
    coin, below, bounds = np.random.default_rng(0), 0, []
    for _ in range(100):
        some = coin.choice(len(held), size=150, p=chance)
        found = bound_share_of_secrets([*zip(fails[some], held[some], strict=True)], alpha=0.05)
        below += found.upper < truth
        bounds.append(found.upper)
    assert below <= 5 + 2 * 2.2  # a mean of at most 5, and two standard errors
    assert np.mean(bounds) - truth < 0.3  # it says something


def test_of_one_a_message_it_is_near_the_bound_of_clopper_and_pearson():
    found = bound_share_of_secrets([(0, 1)] * 360 + [(1, 1)] * 40, alpha=0.025)
    assert found.share == pytest.approx(0.1) and 0.133 < found.upper < 0.18  # exact: 0.1336


def test_a_message_with_many_is_capped_and_an_unread_one_fails_whole():
    assert bound_share_of_secrets([(0, 50), (1, 1)], alpha=0.05).cap == CAPS[-1]
    read = [(0, 2)] * 100
    assert (
        bound_share_of_secrets(read, alpha=0.05).upper
        < bound_share_of_secrets(read, alpha=0.05, unread=5).upper
    )
    assert bound_share_of_secrets([], alpha=0.05).upper == 1


def test_screen_names_what_its_rates_are_of_where_messages_hold_several():
    """Of messages of one secret all are found, of those of four, none: 10 of 100 messages, 31 of
    100 secrets."""
    points = []
    for k in range(300):
        names = [f"name{k}x{n}" for n in range(4 if k % 10 == 0 else 1)]
        text = " ".join(names)
        places = [(text.index(name), text.index(name) + len(name)) for name in names]
        points.append(Point(f"p{k}", f"u{k}", text, tuple(Secret("name", *at) for at in places)))

    def flag(some):
        return [p.secrets if " " not in p.text else () for p in some]

    counter = RateCounter(flag, none_policy)
    counter.add(points)
    found = counter.rates()
    notes = _notes_of_all_secrets(counter, found)
    assert found.miss.count == 30 and [note.partition(":")[0] for note in notes] == [
        "miss",
        "trace",
    ]
    assert "of 100 secrets in messages so drawn (at most 4 of one) 30.8 fail, at most 4" in notes[0]
    assert "long messages fail more often" in notes[0]
    assert counter.all_secrets("miss", judged=9).upper > counter.all_secrets("miss").upper
