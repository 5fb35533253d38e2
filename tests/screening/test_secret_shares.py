"""The bound of all secrets, against the truth of draws whose share is known."""

from dataclasses import replace

import numpy as np
import pytest

from confide.screening.screening_notes import TWO_READERS_NOTE, describe_all_secrets
from crtlib.screening.policy import Policy
from crtlib.screening.rate_values import PolicyRates, rates_from_json
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


def _draw_messages(count, coin, *, long=0.1):
    """Messages of as many people with one secret, which is found, or four, of which none is, and
    a policy that does so. Of all secrets 0.4 / 1.3 fail, where a tenth of the messages is long."""
    points = []
    for k, is_long in enumerate(coin.random(count) < long):
        names = [f"name{k}x{n}" for n in range(4 if is_long else 1)]
        text = " ".join(names)
        places = [(text.index(name), text.index(name) + len(name)) for name in names]
        points.append(Point(f"p{k}", f"u{k}", text, tuple(Secret("name", *at) for at in places)))
    return points, Policy(
        "alone", lambda some: [p.secrets if " " not in p.text else () for p in some],
        reads_labels=True,
    )  # fmt: skip


@pytest.mark.parametrize("draws", [10, 100])
def test_the_counted_bound_covers_all_secrets(draws):
    coin, below = np.random.default_rng(1), 0
    for _ in range(draws):
        points, flag = _draw_messages(120, coin)
        counter = RateCounter(flag, none_policy, one_message=True)
        counter.add(points)
        found = counter.rates()
        below += found.trace.all_secrets.upper < 0.4 / 1.3
        assert found.public.all_secrets.share == found.trace.all_secrets.share
        assert found.trace.all_secrets.alpha == found.alpha
    assert below <= 0.025 * draws + 2 * (0.025 * 0.975 * draws) ** 0.5


def test_rates_name_what_they_are_of_where_messages_hold_several():
    """Of messages of one secret all are found, of those of four, none: about 10 of 100 messages,
    31 of 100 secrets."""
    points, flag = _draw_messages(300, np.random.default_rng(0))
    counter = RateCounter(flag, none_policy, one_message=True)
    counter.add(points)
    found = counter.rates()
    notes = describe_all_secrets(found)
    assert found.miss.all_secrets.share > found.miss.upper_bound and len(notes) == 2
    assert "per 100 secrets in messages so drawn (at most 4 from one): miss " in notes[0]
    assert "one message per person" in notes[0]
    (of_conversations, _) = describe_all_secrets(replace(found, cluster="dialogue"))
    assert "one message per conversation" in of_conversations and "person" not in of_conversations
    assert notes[1].startswith("miss and trace and public: more of 100 secrets fail")
    assert counter.all_secrets("miss", policy_pairs=9).upper > counter.all_secrets("miss").upper


def test_a_share_of_all_secrets_is_kept_in_json_until_its_bound_is_too_sure():
    points, flag = _draw_messages(300, np.random.default_rng(0))
    counter = RateCounter(flag, none_policy, one_message=True)
    counter.add(points)
    found = counter.rates(policy_pairs=3)
    assert rates_from_json(found.to_json(), policy_pairs=3).trace == found.trace
    assert rates_from_json(found.to_json(), policy_pairs=2).trace.all_secrets
    later = rates_from_json(found.to_json(), policy_pairs=4)
    assert later.trace.all_secrets is None and not describe_all_secrets(later)


def test_labels_that_nobody_drew_and_one_secret_a_message_have_no_other_share():
    for long, one_message in ((0.0, True), (0.1, False)):
        points, flag = _draw_messages(60, np.random.default_rng(0), long=long)
        counter = RateCounter(flag, none_policy, one_message=one_message)
        counter.add(points)
        found: PolicyRates = counter.rates()
        assert "all_secrets" not in found.to_json()["trace"] and not describe_all_secrets(found)


def test_where_two_read_one_line_says_why_there_is_no_other_share():
    points, flag = _draw_messages(60, np.random.default_rng(0))
    counter = RateCounter(flag, none_policy, one_message=True)
    counter.add(points, second_reader={p.user: "found" for p in points[:9]})
    found = counter.rates()
    assert found.trace.all_secrets is None and describe_all_secrets(found) == [TWO_READERS_NOTE]
    # Fault: "a second reader read only some of the messages" also where all were read again.
    assert "only some" not in TWO_READERS_NOTE
