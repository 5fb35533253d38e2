"""A text that shares short messages with an earlier one is known again by those that are rare."""

import random

import pytest

from confide import odometer_lines, text_registry
from confide.release import certifiable_run, certificate_parts, certify
from confide.text import registry_units
from confide.training import train_on_corpus
from crtlib.text import corpora, jsonl
from crtlib.text.records import Dialogue, Turn
from tests.release.test_of_0_3 import old  # noqa: F401  a fixture

SMALL = {
    "method": "dpsgd", "width": 2, "epochs": 1, "sampling_probability": 1.0, "epsilon": 3.0,
    "delta": 1e-4,
}  # fmt: skip
SAID = ["thank you", "hello", "you are welcome", "anything else?", "no, that is all", "good bye"]
WORDS = ["order", "box", "late", "blue", "name", "card", "door", "bill", "post", "lost", "kind"]


def messages(seed, number):
    """So many short messages, each said once, of whoever has this seed."""
    coin = random.Random(seed)
    return [" ".join([*coin.choices(WORDS, k=5), f"{seed}-{k}"]) for k in range(number)]


def threads(path, spoken, start=0):
    """A corpus of conversations of nobody who is named."""
    talks = [
        Dialogue(f"{path.stem}-{k}", "", tuple(Turn("USR", text) for text in texts))
        for k, texts in enumerate(spoken, start)
    ]
    jsonl.write_jsonl(talks, path)
    return path


def related(*paths):
    """How many units of each kind the registry finds in common with the first."""
    registry, names = (
        text_registry.Registry(text_registry.registry_folder()),
        [corpora.hash_corpus(p) for p in paths],
    )
    for path in paths:
        text_registry.register_text(path)
    found = registry.find_related_texts(names[0])
    return [dict(found[name]) if name in found else None for name in names[1:]]


def months(home):
    """Two exports of thirty days: 40 of 100 threads go on, with two messages more each."""
    first = [messages(f"jan{k}", 6) for k in range(100)]
    later = [[*first[k], *messages(f"feb{k}", 2)] for k in range(40)]
    later += [messages(f"new{k}", 6) for k in range(60)]
    return threads(home / "january.jsonl", first), threads(home / "february.jsonl", later)


def test_a_rolling_export_of_people_without_a_name_composes(tmp_path):
    """A8: 240 messages were trained on twice, and February said (3.0, 1e-4), 62.6 of 100, and "No
    earlier run on this text, or on text of the same people, is known here"."""
    for text in months(tmp_path):
        train_on_corpus.train(text, out=tmp_path / text.stem, **SMALL)
    first, second = (
        certificate_parts.collect_certificate_parts(
            certifiable_run.read_certifiable_run(tmp_path / name), secrets_per_person=()
        )
        for name in ("january", "february")
    )
    assert second["verdict"] == "holds" and second["spent_before"]["runs"] == 1
    assert second["guarantee"]["missed"]["epsilon"] > 1.2 * first["guarantee"]["missed"]["epsilon"]
    certify.write_certificate(tmp_path / "january", tmp_path / "page.html")
    page = " ".join((tmp_path / "page.html").read_text().split())
    assert "or many short messages (16 at least" in page


@pytest.mark.parametrize("shared, kind", [(4, "stretch"), (100, "rare")])
def test_what_is_said_once_is_enough(tmp_path, shared, kind):
    """A window that moves by most of a period: few threads go on; or each message is a conversation
    of its own, so that nothing follows it."""
    one = [messages(f"a{k}", 6) for k in range(100)]
    other = one[:shared] + [messages(f"b{k}", 6) for k in range(100 - shared)]
    other = [[*texts, f"and more {k}"] for k, texts in enumerate(other)]
    if kind == "rare":
        one = [[text] for texts in one for text in texts]
        other = one[:shared] + [[text] for k in range(80) for text in messages(f"b{k}", 6)]
    (found,) = related(threads(tmp_path / "one.jsonl", one), threads(tmp_path / "o.jsonl", other))
    assert found and found[kind] >= odometer_lines.LEAST_SHARED_MESSAGES and "short" not in found


def test_half_of_the_short_messages_are_enough_though_none_is_rare(tmp_path):
    """Each is in two conversations of either text, which were cut in another way."""
    said = messages("a", 40)
    one = threads(tmp_path / "one.jsonl", [[text] for text in said] * 2)
    other = threads(tmp_path / "other.jsonl", [said[:20], said[20:]] * 2)
    far = threads(tmp_path / "far.jsonl", [said[:19], messages("b", 21)] * 2)
    known, none = related(one, other, far)
    assert known and known["brief"] == known["short"] == 40 and none is None


def test_strangers_who_thank_each_other_are_not_the_same(tmp_path):
    coin = random.Random(0)
    texts = [
        [[*messages(f"{who}{k}", 1), *coin.sample(SAID, 4)] for k in range(100)] for who in "ab"
    ]
    for k, phrase in enumerate(
        messages("closing", odometer_lines.LEAST_SHARED_MESSAGES - 1)
    ):  # said once in each
        texts[0][k].append(phrase)
        texts[1][k].append(phrase)
    paths = (threads(tmp_path / f"{k}.jsonl", some) for k, some in enumerate(texts))
    assert related(*paths) == [None]


def test_a_text_that_0_3_entered_is_known_as_it_was_until_it_is_read_again(tmp_path):
    january, february = months(tmp_path)
    registry, name = (
        text_registry.Registry(text_registry.registry_folder()),
        corpora.hash_corpus(january),
    )
    newer = ("rare", "brief", "stretch", "spoken", "speakers", "owners", "compared")
    units = [u for u in registry_units.hash_registry_units(january) if u[0] not in newer]
    registry.register(name, units, form="older")  # as 0.3 did
    assert related(february, threads(tmp_path / "far.jsonl", [messages("far", 60)])) == [None]
    assert name not in registry.find_related_texts(corpora.hash_corpus(february))
    same = threads(tmp_path / "same.jsonl", [messages(f"jan{k}", 6)[:5] for k in range(100)])
    assert related(same, february)[0]
    assert name in registry.find_related_texts(corpora.hash_corpus(same))  # half of it, as before
    assert related(february, january)[0]


def test_the_registry_of_0_3_knows_which_messages_are_rare_once_it_is_read_again(old):  # noqa: F811
    registry, text = text_registry.Registry(text_registry.registry_folder()), old / "talk.jsonl"
    before = registry.find_related_texts(corpora.hash_corpus(text))
    grown = old / "grown.jsonl"
    grown.write_text(text.read_text().replace('"d', '"x'))
    registry.register(corpora.hash_corpus(grown), registry_units.hash_registry_units(grown))
    assert corpora.hash_corpus(text) in before
    assert corpora.hash_corpus(text) in registry.find_related_texts(corpora.hash_corpus(grown))
    assert (
        "rare"
        not in registry.find_related_texts(corpora.hash_corpus(grown))[corpora.hash_corpus(text)]
    )
    registry.register(corpora.hash_corpus(text), registry_units.hash_registry_units(text))
    assert (
        registry.find_related_texts(corpora.hash_corpus(grown))[corpora.hash_corpus(text)]["rare"]
        >= 16
    )
