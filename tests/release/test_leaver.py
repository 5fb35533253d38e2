"""Of one who leaves: what is promised of all that they said, by all models that had read it."""

import pytest

from confide import odometer, odometer_lines, text_registry
from confide.assumption_sentences import Assumption
from confide.release import leaver
from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.text import jsonl
from crtlib.text.records import Corpus, Dialogue, Turn

EVENT = SampledGaussian(1.0, 8.0, 1)


def talk(number, user, *texts):
    return Dialogue(f"d{number}", user, tuple(Turn("USR", text) for text in texts))


SHORT = [talk(k, f"person {k}", f"my parcel {k} is late, and nobody answers") for k in range(3, 9)]
ANN = [talk(1, "Ann Quux", "where is my order", "it is 4711"), talk(2, "Ann Quux", "still nothing")]


@pytest.fixture
def texts(tmp_path, registry):
    """A text, and one with the same people that an earlier model had read."""
    every = {"corpus": [*ANN, *SHORT], "earlier": [talk(1, "Ann Quux", *"abcde"), *ANN[1:], *SHORT]}
    for name, talks in every.items():
        jsonl.write_jsonl(Corpus(name, tuple(talks)), tmp_path / f"{name}.jsonl")
    return tmp_path


def train(text, run="a", **changes):
    """Enter a training as it would have been entered."""
    line = {
        "state": "finished", "events": (EVENT,), "unit": "turn", "method": "crt",
        "relation": "replace", "screening": "5" * 64, "gamma": 0.1, "delta2": 0.0, "holds": {},
        "void": (), "repeats_counted": True, "about": {"user": {"turn": 6, "dialogue": 2}},
    }  # fmt: skip
    odometer.add_entry(
        text.with_name(f"{text.name}.odometer"), corpus=text_registry.register_text(text), run=run,
        registry=text_registry.Registry(text_registry.registry_folder()), **(line | changes),
    )  # fmt: skip


def epsilon(*sizes):
    events = (EVENT,) * len(sizes)
    return privacy_cost.epsilon(events, delta=1e-6, neighbouring_relation="replace", group=sizes)


def test_all_points_of_a_person_are_counted(texts):
    train(texts / "corpus.jsonl")
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    assert (told["turns"], told["dialogues"]) == (3, 2)
    assert told["whole"]["epsilon"] == pytest.approx(epsilon(3), rel=0.01)
    assert told["message"]["epsilon"] == pytest.approx(epsilon(1), rel=0.01)
    assert told["whole"]["epsilon"] >= epsilon(3) and told["message"]["epsilon"] >= epsilon(1)
    assert 0.5 < told["message"]["right_guess"] < told["whole"]["right_guess"] < 1
    train(texts / "corpus.jsonl", "b", unit="user", about={})
    both = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    assert both["whole"]["epsilon"] == pytest.approx(epsilon(3, 1), rel=0.01)
    assert both["again"]["epsilon"] == pytest.approx(epsilon(1, 1, 1), rel=0.01)
    train(texts / "earlier.jsonl", "c")  # where anybody may have said six things
    every = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    assert every["whole"]["epsilon"] == pytest.approx(epsilon(3, 1, 6), rel=0.01)
    assert sorted(m["points"] for m in every["models"]) == [1, 3, 6]


def test_what_was_learned_without_noise_is_said(texts):
    train(texts / "corpus.jsonl", delta2=0.02)
    train(texts / "corpus.jsonl", "b", events=None, method="sgd")
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    assert (told["plain"], told["unprotected"]) == (1, 1)
    assert sorted(m["epsilon"] is None for m in told["models"]) == [False, True]
    page, said = leaver.render_leaver_page(told), "\n".join(leaver.format_leaver(told))
    assert "1 of these may have learned without noise what a search left plain" in page
    assert "1 of them may have learned without noise what a search left plain" in said
    assert "1 model promises nothing about this person" in page and "at most 2<" in page
    assert "an earlier model may have learned without noise exactly the secrets of a text" in page
    assert "nothing is promised about such messages" in said and "or void: nothing is" in said
    assert not any("Quux" in shown or "4711" in shown for shown in (page, said, str(told)))


def test_a_text_that_no_model_has_read_and_a_name_that_is_not_there(texts, run):
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    page = leaver.render_leaver_page(told)
    assert told["models"] == [] and "None is known here" in page and "there is none" not in page
    assert not (texts / "corpus.jsonl.odometer").exists()
    code, _, error = run("leaver", texts / "corpus.jsonl", "--user", "Bob", "--out", texts / "x")
    assert code == 2 and "nobody in the corpus has this name" in error and "Bob" not in error
    assert not (texts / "x").exists()


def test_who_leaves_is_found_however_the_name_is_written(tmp_path, registry, run):
    """ "Nobody in the corpus is called so" of a name that stood in the very file; and of somebody
    of last month's text, whom a model had read, not a word more."""
    ann = [Dialogue("d1", "Ann@X.com", (Turn("USR", "where is my order"),))]
    for name, talks in (("corpus", [*ann, *SHORT]), ("later", SHORT)):
        jsonl.write_jsonl(Corpus(name, tuple(talks)), tmp_path / f"{name}.jsonl")
    train(tmp_path / "corpus.jsonl")
    for name in ("Ann@X.com", " ann@x.com", "ann@x.com"):
        code, said, _ = run("leaver", tmp_path / "corpus.jsonl", "--user", name)
        assert code == 0 and "1 message in 1 conversation\n" in said
        with pytest.raises(ValueError, match=r"has this name; another text that was .* give that"):
            leaver.describe_leaver(tmp_path / "later.jsonl", name)
    with pytest.raises(ValueError, match=r"has this name$"):
        leaver.describe_leaver(tmp_path / "later.jsonl", "bob@x.com")
    with pytest.raises(ValueError, match="and is empty"):  # all whom nobody named are no person
        leaver.describe_leaver(tmp_path / "corpus.jsonl", " ")


def test_a_plan_promises_of_secrets_and_not_of_people(texts):
    """Of a model whose certificate held the page said "without noise, or void"; that of a later
    plan is void, as nothing adds the two."""
    plan = {"events": None, "method": odometer_lines.PLAN_METHOD}
    train(texts / "corpus.jsonl", "a", **plan, void=("The plan is another.",))
    assert leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")["planned"] == 0
    train(texts / "earlier.jsonl", "b", **plan)
    told = leaver.describe_leaver(texts / "earlier.jsonl", "Ann Quux")
    assert (told["planned"], told["unprotected"]) == (0, 2)
    registry = text_registry.Registry(text_registry.registry_folder())
    home = texts / "corpus.jsonl.odometer"
    line = odometer.read_entries(home)[0].entry
    odometer.strike_run(home, line, because="nobody saw it", registry=registry)
    told = leaver.describe_leaver(texts / "earlier.jsonl", "Ann Quux")
    assert (told["planned"], told["unprotected"]) == (1, 0)
    for words in (leaver.render_leaver_page(told), "\n".join(leaver.format_leaver(told))):
        assert "trained by a plan" in words and "about each secret in it" in words


def test_a_number_stands_with_its_conditions(texts):
    """A message stood six times in the earlier text, of which "one message" was said: 62.6 of 100
    right guesses, where 94.6 is true."""
    known = "what the script was given"
    train(
        texts / "earlier.jsonl", assumed=("rules.txt was not made from this text",),
        treated_as_public=(known,), declared=({"of": "its length", "value": "7", "bits": 3.0},),
    )  # fmt: skip
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    page, said = leaver.render_leaver_page(told), "\n".join(leaver.format_leaver(told))
    for words in (page, said):
        assert "a message of this text was one message of each earlier text" in words
        assert "rules.txt was not made from the text of an earlier model" in words
        assert f"of an earlier model: {known}" in words and "its length" in words
        assert words.count("no two names in this text are of one person") == 1


def test_who_may_have_taught_a_search_is_promised_nothing(texts):
    """Of one who had taught the tagger 14 points of others changed with one message."""
    people = Assumption("people_taught", people=3).sentence()
    train(texts / "corpus.jsonl", assumed=(people,), model="a" * 64)
    train(texts / "corpus.jsonl", "b", base="a" * 64)  # it starts from the other
    train(texts / "corpus.jsonl", "c", assumed=(Assumption("nobody_taught").sentence(),))
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    assert told["taught"] == 2 and told["unprotected"] == 0
    assert [m["epsilon"] is None for m in told["models"]] == [True, True, False]
    assert told["message"]["epsilon"] == pytest.approx(epsilon(1), rel=0.01)
    page, said = leaver.render_leaver_page(told), "\n".join(leaver.format_leaver(told))
    assert "2 models read the text as a search left it" in page
    assert "2 screened by a search that people of the text taught" in said and "1 trained" in said


def test_what_was_forgotten_is_said_where_no_model_is_known(texts):
    train(texts / "earlier.jsonl")
    registry = text_registry.Registry(text_registry.registry_folder())
    registry.forget(text_registry.register_text(texts / "earlier.jsonl"))
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    assert told["forgotten"] == 1 and not told["models"]
    assert "1 text that was forgotten" in "\n".join(leaver.format_leaver(told))
    assert "1 text that was forgotten" in leaver.render_leaver_page(told)


def test_the_steps_of_the_last_training_are_those_that_it_took(texts):
    """Of two trainings that were compared both are charged, and "the last training took 16 steps"
    was said of one that had taken eight."""
    train(texts / "corpus.jsonl", trials=2)
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    assert told["again"]["steps"] == EVENT.steps
    assert told["message"]["epsilon"] == pytest.approx(epsilon(1, 1), rel=0.01)
    # "with the 5 steps ... becomes 12.7", which is of 15: 10.3 is of five.
    assert told["again"]["epsilon"] == pytest.approx(epsilon(1, 1, 1), rel=0.01)
    assert f"took {EVENT.steps} steps" in leaver.render_leaver_page(told)


def test_numbers_of_who_leaves_say_of_which_models_they_are(texts):
    """Beside a model without noise, which may say a message word for word, stood "right guesses at
    most about one of the messages: 75.5", and "of one message epsilon 7.99 becomes 9.08"; and "the
    last training took 30 steps" of one that was not the last."""
    train(texts / "corpus.jsonl")
    only = leaver.render_leaver_page(leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux"))
    assert "these numbers say nothing" not in only
    train(texts / "corpus.jsonl", "b", events=None, method="sgd")
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    page, said = leaver.render_leaver_page(told), "\n".join(leaver.format_leaver(told))
    for what in ("all of these messages", "one of the messages"):
        assert f"about {what}, from the 1 model that learned with noise<" in page
    assert "The last training with noise took" in page
    assert "by the models that learned with noise, of one message epsilon" in page
    assert "these numbers say nothing about anyone who has another one as well" in page
    assert "the last of those with noise: by these alone, of one message" in said


def test_what_a_training_again_takes_is_that_of_as_many_messages(texts):
    """ "It takes as many again", and a training without who had said half took half of the steps;
    "hashes with a key stay", beside plain ones of messages that had been drawn to be read."""
    train(texts / "corpus.jsonl")
    told = leaver.describe_leaver(texts / "corpus.jsonl", "Ann Quux")
    page, said = leaver.render_leaver_page(told), "\n".join(leaver.format_leaver(told))
    assert "where the messages of this person are few" in page and "else fewer" in page
    assert "with the steps, the noise and the sampling of the last one; of fewer messages" in page
    assert said.count("of fewer messages these are others") == 1
    assert "with a key, and without one of messages that were drawn to be read" in page
    assert "a plan of secrets" in page and "exported from a labelling program" in page


def test_of_a_text_that_is_gone_one_message_finds_what_was_trained(texts):
    """ "In another text somebody is: give that one", which 'crtlib run --new-text' had replaced."""
    train(texts / "earlier.jsonl")
    jsonl.write_jsonl(Corpus("now", tuple(SHORT)), texts / "now.jsonl")
    text_registry.register_text(texts / "now.jsonl")
    (texts / "earlier.jsonl").unlink()
    with pytest.raises(ValueError, match="if it is gone, ingest one message of this person"):
        leaver.describe_leaver(texts / "now.jsonl", "Ann Quux")
    jsonl.write_jsonl(Corpus("one", (talk(99, "Ann Quux", "hello"),)), texts / "one.jsonl")
    told = leaver.describe_leaver(texts / "one.jsonl", "Ann Quux")
    assert told["turns"] == 1 and len(told["models"]) == 1
    assert told["whole"]["epsilon"] >= epsilon(6)  # as many as anybody has there
    page = leaver.render_leaver_page(told)
    assert "1 message in 1 conversation are of this person in the text that was given" in page
