"""Two texts are of the same people only where everything that both have is of the same people."""

import json

import pytest

from confide import spending, text_registry
from confide.release import certifiable_run
from confide.reports import screening_page
from confide.screening.corpus_screening import ScreeningOptions
from confide.text import registry_units
from confide.training import train_on_corpus
from crtlib.text import corpora, jsonl
from crtlib.text.records import Dialogue, Turn

SMALL = {
    "method": "user_dpsgd", "width": 2, "epochs": 1, "sampling_probability": 1.0,
    "epsilon": 3.0, "delta": 1e-5,
}  # fmt: skip
LONG = "the order came late and was broken, as all the others of this long month had been before"


def write(path, talks):
    """A text of conversations, each a person and what is said."""
    jsonl.write_jsonl(
        [
            Dialogue(f"{path.stem}-{k}", user, tuple(Turn("USR", text) for text in texts))
            for k, (user, texts) in enumerate(talks)
        ],
        path,
    )
    return path


def shared_units(*paths):
    """What the registry finds of the second text in common with the first."""
    registry = text_registry.Registry(text_registry.registry_folder())
    names = [corpora.hash_corpus(path) for path in paths]
    for path in paths:
        text_registry.register_text(path)
    return registry.find_related_texts(names[1])[names[0]]


def have_same_people(*paths):
    return spending._has_same_people(shared_units(*paths))


def said(who, number):
    return [f"{LONG}, says {who} for the {k}th time" for k in range(number)]


def months(home, archived=True, times=10):
    """Tickets, each of a person of its own; a month later they are joined to customers, and each
    customer's messages stand under an agent, too."""
    stay = [(f"ann{k}@x.org", said(f"ann{k}", 1)) for k in range(30)]
    customers = [said(f"rob{k}", times) for k in range(10)]
    tickets = [(f"t{k}-{n}", [x]) for k, some in enumerate(customers) for n, x in enumerate(some)]
    joined = [(f"rob{k}@x.org", some) for k, some in enumerate(customers)]
    agent = [("agent@shop.org", ["Archived.", *some]) for some in customers] * archived
    return (
        write(home / "january.jsonl", stay + tickets),
        write(home / "february.jsonl", stay + joined + agent),
    )


@pytest.mark.parametrize("archived", [True, False])
def test_messages_that_were_others_make_others(tmp_path, archived):
    assert not have_same_people(*months(tmp_path, archived))


def test_a_second_speaker_makes_nobody_the_same(tmp_path):
    """ "Any one person: at most 68.1 times in 100" was of ten persons: each message of a customer
    was one of a person of its own before, and as an agent had it now, too, nobody compared it."""
    january, february = months(tmp_path, times=2)  # groups of that many are accounted for
    for text in (january, february):
        train_on_corpus.train(text, out=tmp_path / text.stem, **SMALL)
    trained = certifiable_run.read_certifiable_run(tmp_path / "february")
    assert trained.spent.protected_run_count == 1
    assert max(trained.promise().groups) == trained.files_promise.holds["turn"] > 2


def test_a_month_of_the_same_people_stays_one_person_each(tmp_path):
    """What they say once more, and together, is theirs in both."""
    people = [(f"ann{k}", said(f"ann{k}", 3)) for k in range(20)]
    both = [(f"ann{k}", ["Thank you very much."]) for k in range(2)]
    first = write(tmp_path / "january.jsonl", people + both)
    more = [(who, [*texts, f"{LONG}, {who}, once more"]) for who, texts in people]
    assert have_same_people(first, write(tmp_path / "february.jsonl", more + both))
    fewer = write(tmp_path / "march.jsonl", more + both[:1])
    assert not have_same_people(first, fewer)  # whose the word of thanks was, nobody can tell


def test_whose_a_conversation_is_must_be_the_same(tmp_path):
    """Each says the same here and there, but in conversations that are another's."""
    one, two = said("one", 2), said("two", 2)
    rest = [("ann", [*one, *two]), ("bob", [*two, *one])]
    first = write(tmp_path / "one.jsonl", [*rest, ("ann", one), ("bob", two)])
    second = write(tmp_path / "two.jsonl", [*rest, ("bob", one), ("ann", two)])
    shared = shared_units(first, second)
    assert shared["spoken"] == shared["speakers"] == 4 and shared["dialogue"] == 4
    assert not spending._has_same_people(shared)


@pytest.mark.parametrize("user", ["", "own"])
def test_people_without_a_name_are_not_compared(tmp_path, user):
    talks = [("ann", said("ann", 2)), ("bob", said("bob", 2))]
    first = write(tmp_path / "one.jsonl", talks)
    rows = [json.loads(line) for line in first.read_text().splitlines()]
    rows[1]["user"] = rows[1]["id"] if user else ""
    second = tmp_path / "two.jsonl"
    second.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert not have_same_people(first, second)


def test_what_an_older_crtlib_entered_is_not_compared(tmp_path):
    """It kept no conversation with all its people, and no message with all who say it."""
    first = write(tmp_path / "one.jsonl", [("ann", said("ann", 3)), ("bob", said("bob", 3))])
    second = write(tmp_path / "two.jsonl", [("ann", said("ann", 2))])
    registry = text_registry.Registry(text_registry.registry_folder())
    newer = ("spoken", "speakers", "owners", "compared")
    units = [unit for unit in registry_units.hash_registry_units(first) if unit[0] not in newer]
    name = corpora.hash_corpus(first)
    registry.register(name, [*units, ("named", "")], form="older")
    registry.register(corpora.hash_corpus(second), registry_units.hash_registry_units(second))
    assert not spending._has_same_people(
        registry.find_related_texts(corpora.hash_corpus(second))[name]
    )
    assert have_same_people(first, second)  # now that it is read again


@pytest.mark.parametrize("together", [1, 2])
def test_what_a_screening_left_is_not_compared(tmp_path, together):
    """The text of a screened folder, taken in again of other people, or in other conversations."""
    talks = [(f"p{k}", [f"my phone 555-010-{k:04d}, {LONG}, says p{k}"]) for k in range(20)]
    raw = write(tmp_path / "raw.jsonl", talks)
    options = ScreeningOptions("regex:customersim", "none")
    screening_page.screen_into_folder(raw, tmp_path / "s", options)
    left = [d.turns[0].text for d in corpora.read_dialogues(tmp_path / "s")]
    assert not any("555-010" in text for text in left)
    cut = [left[k : k + together] for k in range(0, len(left), together)]
    again = write(tmp_path / "again.jsonl", [(f"q{k}", some) for k, some in enumerate(cut)])
    shared = shared_units(tmp_path / "s", again)
    assert shared["compared"] and not spending._has_same_people(shared)


def test_of_more_messages_than_are_kept_nobody_is_known_to_be_the_same(tmp_path, monkeypatch):
    text = write(tmp_path / "one.jsonl", [(f"p{k}", said(f"p{k}", 2)) for k in range(20)])
    more = write(tmp_path / "two.jsonl", [(f"p{k}", said(f"p{k}", 3)) for k in range(20)])
    assert have_same_people(text, more)
    monkeypatch.setattr(registry_units, "MAX_IDENTIFYING_MESSAGES", 16)
    large = write(tmp_path / "three.jsonl", [(f"p{k}", said(f"p{k}", 4)) for k in range(20)])
    assert not have_same_people(text, large)
