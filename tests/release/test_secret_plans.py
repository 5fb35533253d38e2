"""A plan promises of each value what was searched, on the text where it was searched."""

import json

import pytest

from confide import odometer, text_registry
from confide.assumption_sentences import Assumption
from confide.release import leaver, void_reasons
from confide.screening.teaching import teach_tagger
from confide.training import secret_holders, secret_plans, train_on_corpus
from crtlib.text.records import Point
from tests.texts import write_simulated_text, write_talks
from tests.trainings import make_certificate


def test_what_a_plan_promises_is_of_one_training(tmp_path, run, monkeypatch):
    """The page said that all are charged, and none was; and a prior was rounded up. That several
    were compared was said after the last step."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    words = ["--from-policy", "regex:customersim", "--prior", 0.1001, "--posterior", 0.2]
    assert run("protect", text, *words, "--steps", 10, "--out", tmp_path / "plan")[0] == 0
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 8, "--trials"]
    code, _, error = run("train", text, *words, 50, "--out", tmp_path / "many")
    assert code == 2 and "--trials 50: must be 1, as a plan's promise covers only one" in error
    assert run("train", text, *words, 1, "--out", tmp_path / "one")[0] == 0
    assert make_certificate(tmp_path / "one", tmp_path / "one.html")["verdict"] == "holds"
    monkeypatch.setattr(void_reasons, "reason_before_plan", lambda *_, **__: None)
    assert run("train", text, *words, 1, "--out", tmp_path / "two")[0] == 0
    assert "chance of 0.1 without" in (tmp_path / "one.html").read_text()
    user = json.loads(text.read_text().splitlines()[0])["user"]
    told = leaver.describe_leaver(text, user)  # which called both void, or without protection
    assert (told["planned"], told["unprotected"]) == (1, 1)


def test_a_plan_speaks_of_where_its_search_found_a_value(tmp_path, run):
    """Beside the model stood that the promise is of all points that hold a value."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    turns = [{"speaker": "USR", "text": t} for t in ("я Анна Петрова", "от Анны Петровой")]
    row = {"id": "x", "user": "x", "turns": turns}
    text.write_text(text.read_text() + json.dumps(row) + "\n")
    (tmp_path / "s.csv").write_text("user,secret\nx,Анна Петрова\n")
    words = ["--secrets", tmp_path / "s.csv", "--posterior", 0.1, "--steps", 10]
    assert run("protect", text, *words, "--out", tmp_path / "plan")[0] == 0
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 8, "--out", tmp_path / "m"]
    assert run("train", text, *words)[0] == 0
    said = (tmp_path / "m" / "guarantee.txt").read_text()
    assert "all points that hold it" not in said and "in which the search found it" in said


def test_a_person_of_a_table_of_secrets_has_one_promise(tmp_path):
    """ "Ann@X.org" and "ann@x.org" are one person in every corpus, and two in a plan of users."""
    (tmp_path / "s.csv").write_text("user,secret\nAnn@X.org,Ada Lovelace\nann@x.org,555 1234\n")
    points = [Point("0", "ann@x.org", "I am Ada Lovelace"), Point("1", "ann@x.org", "call 5551234")]
    how = {"by": "user", "prior": 0.001, "posterior": 0.1}
    assert len(secret_holders.find_listed_holders([points], tmp_path / "s.csv", **how).secrets) == 1


@pytest.mark.parametrize("by", ["value", "user"])
def test_a_plan_of_people_assumes_that_each_has_one_name(tmp_path, run, by):
    """Of who is called in two ways each name had a promise, and nothing said so."""
    path = write_simulated_text(tmp_path / "c.jsonl", dialogues=20)
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 5, "--by", by]
    assert run("protect", path, *words, "--out", tmp_path / "plan")[0] == 0
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 4, "--out", tmp_path / "m"]
    assert run("train", path, *words)[0] == 0
    assert run("certify", tmp_path / "m", "--out", tmp_path / "m.html")[0] == 0
    value = json.loads((tmp_path / "m.json").read_text())
    assert (Assumption("one_name").sentence() in value["assumed"]) == (by == "user")
    page = (tmp_path / "m.html").read_text()
    assert ("somebody with two names counts as two" in page) == (by == "user")
    said = (tmp_path / "m" / "guarantee.txt").read_text()
    assert ("found a value of one person" in said) == (by == "user")


def test_a_plan_of_a_screened_folder_is_none_of_its_raw_text(tmp_path, run):
    """The search read the redacted text, where the value stood once, and training all of its 30
    places: "guessed with a chance of at most 0.1" was certified."""
    turn = "my code is ZQ000001 , thank you"
    path = write_talks(tmp_path / "c.jsonl", [turn] * 29 + ["again ZQ000001 please"])
    (tmp_path / "p.toml").write_text("[code]\npattern = '(?<=code is )ZQ\\d+'\n")
    (tmp_path / "s.csv").write_text("user,secret\nx,ZQ000001\n")
    words = ["--policy", f"regex:{tmp_path}/p.toml", "--unit", "dialogue", "--keep-ids"]
    assert run("screen", path, *words, "--dedup", "none", "--out", tmp_path / "s")[0] == 0
    words = ["--secrets", tmp_path / "s.csv", "--posterior", 0.1, "--steps", 5]
    code, _, error = run("protect", tmp_path / "s", *words, "--out", tmp_path / "p")
    assert code == 2 and "is screened, so one message may have decided" in error


@pytest.mark.parametrize("likeness", ["near", "exact"])
def test_there_is_no_plan_where_one_message_decides_about_others(tmp_path, run, likeness):
    """Of a folder of which "screen" says that nothing trained on it has a certificate that of a
    plan held: "guessed with a chance of at most 0.1"."""
    if likeness == "near":
        pytest.importorskip("datasketch", reason="the package datasketch is not installed")
    path = write_talks(tmp_path / "c.jsonl", ["my code is ZQ000001 , thank you", "good morning"])
    words = ["--policy", "cautious", "--dedup-by", likeness, "--out", tmp_path / "s"]
    assert run("screen", path, *words)[0] == 0
    (tmp_path / "s.csv").write_text("user,secret\nx,ZQ000001\n")
    words = ["--secrets", tmp_path / "s.csv", "--posterior", 0.1, "--out", tmp_path / "p"]
    assert run("protect", tmp_path / "s", *words)[0] == 2
    assert run("protect", path, *words, "--batch-size", 1, "--steps", 2)[0] == 0
    words = ["--plan", tmp_path / "p", "--width", 4, "--out", tmp_path / "m"]
    code, _, error = run("train", tmp_path / "s", *words)
    assert code == 2 and "is screened, so one message may have decided" in error


def test_a_plan_names_who_taught_its_search(tmp_path, run):
    """A tagger that was taught on this very text found the secrets: "taught_by: null", and nothing
    was assumed, where CRT by the same tagger names its people."""
    path = write_simulated_text(tmp_path / "c.jsonl", dialogues=20)
    teach_tagger(path, tmp_path / "T", epochs=10, backbone="none")
    words = ["--from-policy", f"tagger:{tmp_path}/T", "--posterior", 0.1, "--steps", 5]
    assert run("protect", path, *words, "--out", tmp_path / "plan")[0] == 0
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 4, "--out", tmp_path / "m"]
    assert run("train", path, *words)[0] == 0
    value = make_certificate(tmp_path / "m", tmp_path / "m.html")
    people = value["policies"]["pi"].get("people", 0)
    assert people > 0 and len(value["policies"]["pi"]["taught_by"]) == 64
    kind = "people_taught" if people else "nobody_taught"
    said = Assumption(kind, people=people or None).sentence()
    assert value["verdict"] == "holds" and said in value["assumed"]
    assert said in (tmp_path / "m.html").read_text()
    told = (tmp_path / "m" / "guarantee.txt").read_text()
    assert said in told and "a protected value of somebody who taught no policy, which" in told
    spared = f"A protected value of somebody who taught no policy (at most {people} people did)"
    assert spared in (tmp_path / "m.html").read_text()


def test_a_value_of_three_spellings_has_one_promise(tmp_path, run):
    """Two spellings were flagged, of 15 points each, and the third, of 30, was passed over: two
    promises of .1, where the value could be guessed with .99997."""
    path = write_simulated_text(tmp_path / "c.jsonl", dialogues=20)
    said = ["555-1234"] * 15 + ["555 1234"] * 15 + ["5551234"] * 30
    with path.open("a") as file:
        for k, number in enumerate(said):
            turns = [{"speaker": "USR", "text": f"please call {number} , it is the {k}th time"}]
            file.write(json.dumps({"id": f"x{k}", "user": f"x{k}", "turns": turns}) + "\n")
    (tmp_path / "ph.toml").write_text("[phone]\npattern = '555[- ]1234'\n")
    words = ["--from-policy", f"regex:{tmp_path}/ph.toml", "--posterior", 0.1, "--steps", 10]
    assert run("protect", path, *words, "--out", tmp_path / "plan")[0] == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert (plan["secrets"], plan["held"], plan["promises"]) == (1, 60, [[0.001, 0.1]])
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 4, "--out", tmp_path / "m"]
    assert run("train", path, *words)[0] == 0
    assert run("certify", tmp_path / "m", "--out", tmp_path / "m.html")[0] == 0
    (guess,) = json.loads((tmp_path / "m.json").read_text())["value_guess"]
    assert guess["at_most"] <= 0.1
    assert "search found" in (tmp_path / "m.html").read_text()


@pytest.mark.parametrize("targets", ["sqrt", "linear"])
@pytest.mark.parametrize("relation", ["reference", "add_or_remove", "replace"])
def test_every_plan_that_can_be_made_can_be_certified(tmp_path, run, targets, relation):
    """Of a plan with the accounting "tight" no certificate ever held. "Neighbours: one data point
    added or removed", and "not promised: that epsilon", of what has none and is of a secret."""
    path = write_simulated_text(tmp_path / "c.jsonl", dialogues=20)
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 10]
    words += ["--targets", targets, "--neighbouring", relation]
    assert run("protect", path, *words, "--out", tmp_path / "plan")[0] == 0
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 4, "--out", tmp_path / "m"]
    assert run("train", path, *words)[0] == 0
    code, said, error = run("certify", tmp_path / "m", "--out", tmp_path / "m.html")
    assert code == 0 and ": holds;" in said, error
    told = (tmp_path / "m" / "guarantee.txt").read_text()
    assert "neighbours: all points in which a secret was found, as they are" in told
    value = json.loads((tmp_path / "m.json").read_text())
    assert not any("epsilon" in said for said in value["not_promised"])
    assert value["guarantee"]["relation"] == relation
    assert run("certify", tmp_path / "m", "--out", tmp_path / "m.html", "--verify")[0] == 0


def test_a_second_plan_says_that_a_plan_was_before_it(tmp_path, run, monkeypatch):
    """ "What earlier models spent was counted for messages", of what was counted for secrets."""
    path = write_simulated_text(tmp_path / "c.jsonl", dialogues=20)
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 5]
    monkeypatch.setattr(void_reasons, "reason_before_plan", lambda *_, **__: None)
    for name in ("one", "two"):
        assert run("protect", path, *words, "--out", tmp_path / f"plan {name}")[0] == 0
        plan = ["--plan", tmp_path / f"plan {name}", "--epochs", 1, "--width", 4]
        assert run("train", path, *plan, "--out", tmp_path / name)[0] == 0
    (why,) = make_certificate(tmp_path / "two", tmp_path / "two.html")["void_because"]
    assert why.startswith("What an earlier plan spent was counted for the secrets of")


@pytest.fixture
def planned(tmp_path, run):
    """A text, and a plan of it."""
    path = write_simulated_text(tmp_path / "c.jsonl", dialogues=20)
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 5]
    assert run("protect", path, *words, "--out", tmp_path / "plan")[0] == 0
    return path, tmp_path / "plan"


@pytest.mark.parametrize("before", ["messages", "secrets", "unprotected base", "broken promise"])
def test_what_would_be_void_is_not_trained(planned, tmp_path, run, monkeypatch, before):
    """The last line of a training said it, when all was spent."""
    path, plan = planned
    words, first = ["--plan", plan, "--epochs", 1, "--width", 4], {"width": 4, "epochs": 1}
    if before == "messages":
        train_on_corpus.train(path, method="dpsgd", out=tmp_path / "first", **first)
    elif before == "secrets":
        train_on_corpus.train(path, plan=plan, out=tmp_path / "first", **first)
    elif before == "unprotected base":
        how = {"method": "sgd", "model": "gpt2", "vocab_size": 300}
        train_on_corpus.train(path, out=tmp_path / "first", **how, **first)
        words = ["--plan", plan, "--epochs", 1, "--init", tmp_path / "first"]
    else:
        account = secret_plans.account_secrets
        monkeypatch.setattr(
            secret_plans, "account_secrets", lambda *a: account(*a).assign(posterior=1.0)
        )
    known = odometer.read_entries(tmp_path / "c.jsonl.odometer") if before[0] != "b" else []
    code, _, error = run("train", path, *words, "--out", tmp_path / "m")
    why = {
        "messages": "What earlier models spent was counted for messages",
        "secrets": "What an earlier plan spent was counted for the secrets",
        "unprotected base": "It started from a model that had learned this text",
        "broken promise": "Some secrets exceed what the plan promised",
    }[before]
    assert code == 2 and f"--plan: a certificate would be void: {why}" in error
    assert error.count("\n") == 1 and not [*tmp_path.glob("m*")]
    if known:
        assert odometer.read_entries(tmp_path / "c.jsonl.odometer") == known
    else:
        assert not (tmp_path / "c.jsonl.odometer").exists()
    assert run("train", path, *words, "--repeatable-noise", "--out", tmp_path / "m")[0] == 0


def test_a_plan_that_was_stopped_begins_again(planned, tmp_path):
    """It went on, took the steps of its last epoch again, and was void after the last step."""
    path, plan = planned
    how = {"plan": plan, "epochs": 2, "width": 4, "out": tmp_path / "m"}
    with pytest.raises(KeyError), train_on_corpus.Session(path, **how) as session:
        for step in session:
            step()
            if step.number == 3:
                raise KeyError
    other = how | {"out": tmp_path / "other"}
    for again, why in ((how, "Some secrets exceed"), (other, "What an earlier plan spent")):
        with pytest.raises(ValueError, match=f"a certificate would be void: {why}"):
            train_on_corpus.train(path, **again)
    (line,) = odometer.read_entries(tmp_path / "c.jsonl.odometer")
    registry = text_registry.Registry(text_registry.registry_folder())
    odometer.strike_run(
        tmp_path / "c.jsonl.odometer", line.entry, because="nobody saw it", registry=registry
    )
    assert train_on_corpus.train(path, **other).holds
