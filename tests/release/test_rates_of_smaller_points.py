"""A rate that was measured message by message bounds nothing of a secret that is said in several:
it held, and was false, where a later model on the text has conversations or people as its unit."""

import random

from confide import odometer, spending, text_registry
from crtlib.text import corpora
from crtlib.text.records import Dialogue, Secret, Turn
from tests import trainings
from tests.release.test_earlier_runs import CRT, WORDS, certified, write

BY_MESSAGE = CRT | {"policy": "regex:multiwoz", "unit": "turn"}  # marks what "ID is" stands before
BY_CONVERSATION = CRT | {"unit": "dialogue"}


def ids_that_are_said_twice(number):
    """Conversations of one person each, in which one of two mentions of an ID is passed over."""
    coin, talks = random.Random(0), []
    for k in range(number):
        pin = f"{coin.randrange(10**6):06d}"
        said = [f"my ID is {pin} {coin.choice(WORDS)}", f"{pin} {coin.choice(WORDS)}"]
        turns = [Turn("USR", x, (Secret("id", x.index(pin), x.index(pin) + 6),)) for x in said]
        talks.append(Dialogue(f"d{k}", f"u{k}@x", tuple(turns)))
    return talks


def test_a_rate_of_messages_bounds_nothing_of_conversations(tmp_path):
    """Of 113 numbers, each in five messages, m1 had learned all without noise, in one of the five.
    m2 said "at most 34.0 of 100 secrets may have been learned word for word", right at most 79.1 of
    100; who counts the public points of m1 is always right."""
    path = write(tmp_path / "c.jsonl", ids_that_are_said_twice(60))
    made = trainings.train(path, out=tmp_path / "m1", dedup="none", **BY_MESSAGE)
    public = [p.text for p in made.fitted.data.prepared.public]
    assert len(public) == len(made.fitted.data.corpus.dialogues)
    trainings.train(path, out=tmp_path / "m2", **BY_CONVERSATION)
    first, second = certified(tmp_path / "m1")[0], certified(tmp_path / "m2")[0]
    assert first["verdict"] == "holds" and first["rates"]["public"]["upper"] < 0.7
    assert second["verdict"] == "void" and second["spent_before"]["delta2"] == 1.0
    assert any("for smaller data points" in why for why in second["void_because"])
    place = odometer.find_odometer(path, corpora.hash_corpus(path))
    registry = text_registry.Registry(text_registry.registry_folder())
    known = spending.report_spending(spending.read_odometer_history(place, registry), delta=1e-3)
    assert known["unit"] == "dialogue" and known["together"]["delta2"] == 1.0


def test_noise_on_everything_composes_with_larger_points(tmp_path):
    path = write(tmp_path / "c.jsonl", ids_that_are_said_twice(20))
    trainings.train(path, out=tmp_path / "m1", conservative="everything", **BY_MESSAGE)
    trainings.train(path, out=tmp_path / "m2", conservative="everything", **BY_CONVERSATION)
    second = certified(tmp_path / "m2")[0]
    assert (second["verdict"], second["guarantee"]["kind"]) == ("holds", "dp")
