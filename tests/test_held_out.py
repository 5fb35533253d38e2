"""Who is held out, and what may depend on it."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

import confide
from confide import recipes
from confide.training import study_of_text
from crtlib.studies.study_data import split_by_coins
from crtlib.text import jsonl
from crtlib.text.records import Corpus, Dialogue, Turn

PARTS = ("train", "valid", "test")


def talk(number, user, turns=1):
    return Dialogue(f"d{number}", user, tuple(Turn("USR", f"{number}, {k}") for k in range(turns)))


def a_corpus(rng, people=30, talks=60):
    return [talk(k, f"p{rng.randrange(people)}") for k in range(talks)]


def neighbours(rng, talks):
    """A corpus with one conversation replaced: of another person, elsewhere, or of a new one."""
    other, k = list(talks), rng.randrange(len(talks))
    new = talk(k, rng.choice([f"p{rng.randrange(30)}", "somebody new"]))
    del other[k]
    other.insert(rng.randrange(len(talks)), new)
    return other, {talks[k], new}


def test_one_message_decides_about_nobody_else():
    """People were cut in the order of their first conversations, so one author more or less at
    the beginning moved 136 of 400 conversations in or out of training."""
    rng = random.Random(0)
    for seed in range(40):
        talks = a_corpus(rng)
        other, replaced = neighbours(rng, talks)
        one, two = (
            split_by_coins(Corpus("c", tuple(d)), seed=seed, share=0.1) for d in (talks, other)
        )
        for name in PARTS:
            a, b = (Counter(getattr(split, name).dialogues) for split in (one, two))
            assert set((a - b) + (b - a)) <= replaced


@pytest.mark.parametrize("how", ["crt", "dpsgd", "user_dpsgd", "screened"])
def test_of_a_text_of_one_person_nothing_is_promised_of_a_person(tmp_path, how):
    text = tmp_path / "c.jsonl"
    jsonl.write_jsonl(Corpus("c", tuple(talk(k, "ann") for k in range(40))), text)
    options = {"method": how, "unit": "user", "policy": "none", "out": tmp_path / "model"}
    if how == "screened":
        made = confide.screen(text, tmp_path / "s", policy="none", unit="user")
        assert any("one person wrote all of it" in note for note in made.notes)
        text, options = tmp_path / "s", {"out": tmp_path / "model"}
    for name in {"crt": (), "dpsgd": ("policy",), "user_dpsgd": ("policy", "unit")}.get(how, ()):
        del options[name]
    where = {"user_dpsgd": "method='dpsgd', unit", "screened": "screen it with unit"}
    units = f"{where.get(how, '.unit')}='turn' or 'dialogue'"
    message = f"one person wrote all of it, .*{units}.*others"
    with pytest.raises(ValueError, match=f"^{text}: {message}"):
        confide.train(text, **options)
    assert not (tmp_path / "model").exists()


def test_conversations_of_nobody_have_a_coin_each():
    """They had one coin together, so all of a text without names was held out, or nothing."""
    corpus = Corpus("c", tuple(talk(k, "") for k in range(200)))
    split = split_by_coins(corpus, seed=0, share=0.1)
    assert all(5 < len(getattr(split, name)) < 190 for name in PARTS)
    alone = Corpus("c", tuple(talk(k, "one") for k in range(20)))
    with pytest.raises(
        ValueError, match=r"seed=2: holds out all of 20 dialogues, .* one person; take"
    ):
        split_by_coins(alone, seed=2, share=0.1)


def test_what_is_certified_is_split_by_coins(tmp_path):
    path = tmp_path / "c.jsonl"
    jsonl.write_jsonl(Corpus("c", tuple(talk(k, f"p{k}") for k in range(20))), path)
    assert study_of_text.build_study(path, policy="none", conservative="none").split == "coin"


def test_a_tenth_of_the_people_validates_and_a_tenth_tests():
    corpus = Corpus("c", tuple(talk(k, f"p{k // 2}") for k in range(4000)))
    split = split_by_coins(corpus, seed=3, share=0.1)
    sizes = [len(getattr(split, name)) for name in PARTS]
    assert sum(sizes) == 4000 and all(340 < n < 460 for n in sizes[1:])
    people = [{d.user for d in getattr(split, name).dialogues} for name in PARTS]
    assert not people[0] & people[1] and not people[0] & people[2] and not people[1] & people[2]
    again = split_by_coins(replace(corpus, dialogues=corpus.dialogues[::-1]), seed=3, share=0.1)
    assert {d.user for d in again.train.dialogues} == people[0]
    assert len(split_by_coins(corpus, seed=3, share=0.0).train) == 4000


def test_a_training_that_holds_nobody_out_says_so(tmp_path):
    """Of three people the coins hold nobody out: nothing is measured, and all else is as usual."""
    path = tmp_path / "few.jsonl"
    few = Corpus("few", tuple(talk(k, f"p{k % 3}", 2) for k in range(24)))
    jsonl.write_jsonl(few, path)
    seed = next(
        s for s in range(99)
        if len(split_by_coins(few, seed=s, share=0.1).train) == 24
    )  # fmt: skip
    made = confide.train(
        path, method="dpsgd", epsilon=4, epochs=1, width=4, seed=seed, out=tmp_path / "m"
    )
    assert f"nobody is held out by seed {seed}, so no perplexity is measured" in str(made)
    confide.certify(tmp_path / "m", tmp_path / "c.html")
    value = json.loads((tmp_path / "c.json").read_text())
    assert value["verdict"] == "holds"
    assert [row["of"] for row in value["declared"]] == ["number of private points"]


def test_hours_choose_by_what_is_trained_on(tmp_path):
    """One conversation that is held out, of 4 messages or of 30, chose the width of the model."""
    corpus = Corpus("c", tuple(talk(k, f"p{k}", 4) for k in range(60)))
    out = split_by_coins(corpus, seed=0, share=0.1).test.dialogues[0]
    longer = replace(out, turns=out.turns * 8)
    widths = []
    for held in (out, longer):
        path = tmp_path / f"{len(held.turns)}.jsonl"
        talks = tuple(held if d == out else d for d in corpus.dialogues)
        jsonl.write_jsonl(replace(corpus, dialogues=talks), path)
        asked = {"corpus": str(path), "method": "dpsgd", "epsilon": 1.0, "unit": "dialogue"}
        widths += [
            [
                study_of_text.resolve_model(
                    recipes.make_recipe(asked | {"core_hours": hours}), "cpu"
                ).width
                for hours in (2e-4 * 1.1**k for k in range(30))
            ]
        ]
    assert widths[0] == widths[1] and len(set(widths[0])) > 1
