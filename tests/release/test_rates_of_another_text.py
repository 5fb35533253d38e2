"""Certificates of several runs together that held and were false: a rate that was measured on one
text was added as if it were of another."""

import random
from dataclasses import replace

import pytest

from confide import odometer, text_registry
from confide.reports import screening_page
from confide.screening.corpus_screening import ScreeningOptions
from crtlib.text import corpora
from crtlib.text.records import Dialogue, Secret, Turn
from tests import trainings
from tests.release.test_earlier_runs import CRT, DPSGD, certified, messages, write
from tests.release.test_repeated_messages import drawn_and_read

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
EVERYTHING = CRT | {"conservative": "everything"}
VOID = "nothing measured there is a bound here"


def missed(number):
    """Messages of one person each whose secrets no policy finds."""
    coin, talks = random.Random(0), []
    for k in range(number):
        code = " ".join(coin.choices(DIGITS, k=9))
        turn = Turn("USR", f"It is {code} and please hurry.", (Secret("code", 6, 6 + len(code)),))
        talks.append(Dialogue(f"h{k}", f"bob{k}@x", (turn,)))
    return talks


def a_part_of_the_text(home):
    """The second text is what the first one's search passed over: 78 of 100 secrets of it were
    learned without noise, where at most 10.8 was printed."""
    both = [*messages("a", 300), *missed(30)]
    return write(home / "one.jsonl", both), write(home / "two.jsonl", missed(30))


def the_same_messages_with_names(home):
    """Of the second text a person is drawn, and then one of his secrets: 74 of 100 of these were
    learned without noise, where at most 18.1 was printed."""
    both = [replace(d, user="agency@x") for d in messages("a", 300)] + missed(30)
    nameless = [replace(d, user="") for d in both]
    return write(home / "one.jsonl", nameless), write(home / "two.jsonl", both)


def the_public_part_of_a_screened_folder(home):
    """All of the second text had been learned without noise; at most 2.38 of 100 was printed."""
    text = write(home / "one.jsonl", [*messages("a", 300), *missed(30)])
    how = ScreeningOptions("regex:wikitext2", "regex:wikitext2", keep_ids=True)
    screening_page.screen_into_folder(text, home / "s", how)
    left = [d for d in corpora.read_dialogues(home / "s") if "hurry" in d.turns[0].text]
    assert len(left) == 30
    return text, write(home / "two.jsonl", left)


@pytest.mark.parametrize(
    "texts",
    [a_part_of_the_text, the_same_messages_with_names, the_public_part_of_a_screened_folder],
)
def test_a_rate_of_another_text_bounds_nothing_here(tmp_path, texts):
    one, two = texts(tmp_path)
    trainings.train(one, out=tmp_path / "m1", **CRT)
    trainings.train(two, out=tmp_path / "m2", **DPSGD)
    first, second = certified(tmp_path / "m1")[0], certified(tmp_path / "m2")[0]
    assert first["verdict"] == "holds" and first["rates"]["public"]["upper"] < 0.3
    assert second["verdict"] == "void" and second["spent_before"]["delta2"] == 1.0
    assert any(VOID in why and "--strike" in why for why in second["void_because"])
    place = odometer.find_odometer(one, corpora.hash_corpus(one))
    registry = text_registry.Registry(text_registry.registry_folder())
    line = odometer.read_entries(place)[-1]
    odometer.strike_run(place, line.entry, because="nobody saw it", registry=registry)
    assert certified(tmp_path / "m2")[0]["verdict"] == "holds"


def test_where_no_point_came_out_public_nothing_is_said_to_have_been_learned(tmp_path):
    """ "An earlier run learned without noise what its search passed over": of one whose search
    flagged every message, so that nothing was; the line of a run has a bound above 0, and no
    count."""
    both = messages("a", 120)
    one, two = write(tmp_path / "one.jsonl", both), write(tmp_path / "two.jsonl", both[:90])
    trainings.train(one, out=tmp_path / "m1", **CRT)
    trainings.train(two, out=tmp_path / "m2", **DPSGD)
    first, second = certified(tmp_path / "m1")[0], certified(tmp_path / "m2")[0]
    assert {p["kind"] for p in first["mechanism"]["phases"]} == {"private"}
    assert 0 < first["rates"]["public"]["upper"] < 1
    (why,) = (why for why in second["void_because"] if VOID in why)
    assert "may have learned without noise" in why


def test_noise_on_everything_composes_over_texts(tmp_path):
    """What leaves nothing without noise protects the secrets of each text, found or not."""
    one, two = a_part_of_the_text(tmp_path)
    trainings.train(one, out=tmp_path / "m1", **DPSGD)
    trainings.train(one, out=tmp_path / "m2", **EVERYTHING)
    trainings.train(two, out=tmp_path / "m3", **DPSGD)
    value, _, words = certified(tmp_path / "m3")
    before = value["spent_before"]
    assert value["verdict"] == "holds" and value["guarantee"]["kind"] == "dp"
    assert (before["runs"], before["elsewhere"], before["delta2"]) == (2, 2, 0.0)
    assert value["guarantee"]["secret"]["epsilon"] > 1.3 * before["alone"]["epsilon"]
    assert "of this model and 2 earlier on this text or text" in words


def test_no_trace_rate_of_another_text_is_counted_on(tmp_path):
    """What was found there was masked; which of this text's secrets that were, nobody measured."""
    january = write(tmp_path / "one.jsonl", messages("a", 100))
    both = [*messages("a", 100), *messages("b", 300), *missed(4)]
    february = write(tmp_path / "two.jsonl", both)
    trainings.train(january, out=tmp_path / "m1", **EVERYTHING)
    trainings.train(february, out=tmp_path / "m2", **CRT)
    value, said, _ = certified(tmp_path / "m2")
    before = value["spent_before"]
    assert value["verdict"] == "holds" and (before["runs"], before["gamma"]) == (1, 1.0)
    assert before["delta2"] == value["rates"]["public"]["upper"] > 0
    assert value["guarantee"]["kind"] == "bayesian_confidentiality"
    assert "1 of the earlier models was trained on other text: what their searches passed over" in (
        said
    )
    assert "Those of earlier searches are added" not in said


def test_rates_under_two_laws_do_not_add(tmp_path):
    """One was bounded for a person and then one of their secrets, the other for a person and then
    one of their messages until it holds one."""
    text = write(tmp_path / "c.jsonl", [*messages("a", 200), *missed(4)])
    judges = drawn_and_read(text, tmp_path / "labels", "regex:wikitext2")
    for out, how in (
        ("m1", CRT),
        ("m2", CRT | {"labels": judges}),
        ("m3", CRT | {"conservative": "cautious", "labels": judges}),
    ):
        trainings.train(text, out=tmp_path / out, **how)
    first, same, other = (certified(tmp_path / name)[0] for name in ("m1", "m2", "m3"))
    assert first["labels"]["drawn"] == "given" and same["labels"]["drawn"] == "at_random"
    assert first["verdict"] == same["verdict"] == "holds"  # of one screening this one's rates do
    assert same["spent_before"]["delta2"] == same["rates"]["public"]["upper"]
    assert other["verdict"] == "void" and any(
        "were drawn by another law" in why for why in other["void_because"]
    )
