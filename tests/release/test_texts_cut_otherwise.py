"""A text that was cut in another way: of how many points of it a person is, and what that costs."""

import json

import pytest

from confide import spending, text_registry
from confide.release import certifiable_run, composed_promise
from crtlib.text import corpora
from tests import trainings
from tests.texts import related_texts, write_messages
from tests.trainings import TINY, make_certificate


@pytest.mark.parametrize("long", [True, False])
def test_a_person_of_many_messages_is_as_many_points_where_the_text_was_cut_by_message(
    tmp_path, long
):
    """A ticket each, and before it the same messages without a name: the earlier run counted with
    a group of one where it took twelve, and not at all where the messages are short."""
    whole = write_messages(tmp_path / "whole.jsonl", [f"p{k}" for k in range(14)], cut=12, turns=12)
    if not long:
        whole.write_text(whole.read_text().replace(
            ", which came late and was broken, as the others had been.", "."
        ))  # fmt: skip
    flat = tmp_path / "flat.jsonl"
    said = [t for row in map(json.loads, whole.read_text().splitlines()) for t in row["turns"]]
    flat.write_text("".join(
        json.dumps({"id": f"{k}", "user": f"{k}", "turns": [t]}) + "\n" for k, t in enumerate(said)
    ))  # fmt: skip
    own = TINY | {"epsilon": 1.0}
    trainings.train(flat, out=tmp_path / "one", method="dpsgd", **own)
    trainings.train(whole, out=tmp_path / "two", method="user_dpsgd", **own)
    page = make_certificate(tmp_path / "two", tmp_path / "two.html")
    assert page["spent_before"]["runs"] == 1
    assert page["right_guess"][0]["at_most"] > 0.95  # twelve times epsilon 1


def test_one_conversation_in_common_is_no_same_cut(tmp_path):
    """A ticket of one mail is the same conversation in both texts; the others were twelve."""
    people = [f"p{k}" for k in range(14)]
    whole = write_messages(tmp_path / "whole.jsonl", people, cut=12, turns=12)
    flat = write_messages(tmp_path / "flat.jsonl", people, cut=1, turns=12)
    extra = write_messages(tmp_path / "extra.jsonl", ["solo"], cut=1, turns=1).read_text()
    for path in (whole, flat):
        path.write_text(path.read_text() + extra)
    shared = text_registry.Registry(text_registry.registry_folder())
    own = TINY | {"epsilon": 1.0, "unit": "dialogue"}
    trainings.train(flat, out=tmp_path / "one", method="dpsgd", **own)
    trainings.train(whole, out=tmp_path / "two", method="dpsgd", **own)
    assert (
        shared.find_related_texts(corpora.hash_corpus(whole))[corpora.hash_corpus(flat)]["dialogue"]
        == 1
    )
    page = make_certificate(tmp_path / "two", tmp_path / "two.html")
    assert page["spent_before"]["runs"] == 1 and page["right_guess"][0]["at_most"] > 0.95


def test_a_word_that_two_people_own_in_two_texts_makes_them_others(tmp_path):
    """One conversation with its owner in common silenced five hundred messages of other owners."""
    people = [f"p{k}" for k in range(14)]
    whole = write_messages(tmp_path / "whole.jsonl", people, cut=12, turns=12)
    flat = write_messages(tmp_path / "flat.jsonl", people, cut=1, turns=12)
    rows = [json.loads(line) for line in flat.read_text().splitlines()]
    flat.write_text("".join(json.dumps(r | {"user": r["user"] + "@x"}) + "\n" for r in rows))
    extra = write_messages(tmp_path / "extra.jsonl", ["solo"], cut=1, turns=1).read_text()
    for path in (whole, flat):
        text = path.read_text().replace(
            ", which came late and was broken, as the others had been", ""
        )
        path.write_text(text + extra)
    related_texts(whole, flat)
    names = [corpora.hash_corpus(path) for path in (whole, flat)]
    shared = text_registry.Registry(text_registry.registry_folder()).find_related_texts(names[0])[
        names[1]
    ]
    assert shared["owners"] == shared["dialogue"] == 1 and shared["compared"]
    assert not spending._has_same_people(shared)


def test_people_who_have_no_name_in_an_earlier_text_are_as_many_points_as_messages(tmp_path):
    """Chats without people, and some of them again with the number of a customer: a person was
    one conversation of the earlier text."""
    people = [f"p{k}" for k in range(14)]
    named = write_messages(tmp_path / "named.jsonl", people, cut=2, turns=8)
    bare = tmp_path / "bare.jsonl"
    rows = [json.loads(line) for line in named.read_text().splitlines()]
    bare.write_text("".join(json.dumps(row | {"user": row["id"]}) + "\n" for row in rows))
    same = write_messages(tmp_path / "same.jsonl", people, cut=2, turns=10)
    names = [corpora.hash_corpus(p) for p in (named, bare, same)]
    related_texts(named, bare, same)
    shared = text_registry.Registry(text_registry.registry_folder()).find_related_texts(names[0])
    assert [spending._has_same_people(shared[name]) for name in names[1:]] == [False, True]


def test_a_text_that_was_cut_in_another_way_counts_by_messages(tmp_path, run):
    """Twelve messages of a person were twelve people in the first text; the second one's person
    was composed with one of them. Short messages did not show that it is one text."""
    rows = [f"p{k // 6},t{k // 6},order {k} is late and red" for k in range(14 * 6)]
    (tmp_path / "c.csv").write_text("customer,ticket,body\n" + "\n".join(rows) + "\n")
    flat = ["--text", "body", "--no-users", "--thread", "body"]
    talks = ["--text", "body", "--user", "customer", "--thread", "ticket"]
    for name, words in (("flat", flat), ("talks", talks)):
        assert run("ingest", tmp_path / "c.csv", *words, "--yes", "--out", tmp_path / name)[0] == 0
    for name, method, unit in (("flat", "dpsgd", "dialogue"), ("talks", "user_dpsgd", "user")):
        how = TINY | {"method": method, "unit": unit}
        trainings.train(tmp_path / name, out=tmp_path / f"m-{name}", **how)
    made = certifiable_run.read_certifiable_run(tmp_path / "m-talks")
    both = composed_promise.compose_promise(made.files_promise, made.spent, delta=1e-4)
    assert made.spent.protected_run_count == 1 and both.groups == (1, 6)
