"""What a card and a page say of a training follows from what was in force there."""

import csv
import json
import re

import pytest

from confide.release import certify
from confide.reports import model_card
from confide.training import train_on_corpus
from tests import trainings
from tests.texts import write_simulated_text

SMALL = {"width": 2, "epochs": 1, "sampling_probability": 1.0, "epsilon": 3.0, "delta": 1e-4}


def settings_on(card):
    return dict(re.findall(r"^\| (\S+) \| (.*) \|$", card.read_text(), re.M))


def words(page):
    return " ".join(re.sub(r"<[^>]+>", "", page.read_text()).split())


@pytest.fixture
def screened(tmp_path, run):
    """A text that was screened with a tenth missed on purpose, and no labels."""
    text, rules = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "rules.toml"
    rules.write_text("[number]\npattern = '\\d{4,}'\n")
    for row in (rows := [json.loads(line) for line in text.read_text().splitlines()]):
        for turn in row["turns"]:
            turn.pop("secrets", None)
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, error = run(
        "screen", text, "--policy", f"regex:{rules}", "--conservative", "everything",
        "--gamma", "0.1", "--out", tmp_path / "s",
    )  # fmt: skip
    assert code == 0, error
    return tmp_path / "s"


def test_a_card_has_the_settings_that_were_in_force(screened):
    """Of a screened text it had "policy | none", "dedup | none" and "gamma | 0.0"."""
    out = screened.parent / "m"
    train_on_corpus.train(screened, out=out, card=model_card.render_model_card, **SMALL)
    told = settings_on(out / "README.md")
    assert (told["policy"], told["conservative"]) == ("regex:rules.toml", "everything")
    assert (told["gamma"], told["dedup"]) == ("0.1", "all")
    assert "labelled" not in told and "duplicates" not in told
    # "heldout | 12" of 22 conversations, and "variety | paper" of a text that nobody simulated.
    assert not {"heldout", "variety", "copies", "lora_alpha"} & told.keys()


def test_a_page_of_a_screening_says_what_was_counted_and_missed_on_purpose(screened):
    """ "Counted on labels", and "the bounds hold together with 95 %", stood over no count."""
    page = words(screened / "screening.html")
    assert "but for a share of 10.0 % that was missed on purpose" in page
    assert "Nothing was counted on labels." in page and "hold together" not in page
    assert "Second occurrences become a mask and nothing else" in page


@pytest.fixture
def raw(tmp_path):
    """A table of one message a person and a day."""
    home = tmp_path
    with (home / "m.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "thread", "speaker", "text", "time"])
        writer.writerows(
            [f"u{k}", f"t{k}", "customer", f"hello {k} again", f"2026-01-{k + 1:02}T10:00:00"]
            for k in range(30)
        )
    return home


def test_no_search_is_named_where_the_text_was_read_as_it_is(raw, run):
    """Of DP-SGD, which asks no search, the engineer's page had "pi.name: regex", and the card
    "policy | regex", "dedup | none" and the learning rate of steps that it has not."""
    assert run("ingest", raw / "m.csv", "--yes", "--out", raw / "c")[0] == 0
    trainings.train(
        raw / "c", out=raw / "m", card=model_card.render_model_card, method="dpsgd",
        canaries=2, copies=3, **SMALL,
    )  # fmt: skip
    told = settings_on(raw / "m" / "README.md")
    unread = ("policy", "conservative", "dedup", "duplicates", "gamma", "learning_rate", "per")
    assert not {*unread} & {*told} and told["clip_norm"] == "1.0"
    by_person = trainings.train(raw / "c", method="user_dpsgd", **SMALL)
    assert re.match(r"private \d+ people · noise", by_person.lines[0])  # who are drawn
    made = certify.write_certificate(raw / "m", raw / "m.html", secrets_per_person=())
    assert made["verdict"] == "holds" and made["guarantee"]["kind"] == "dp"
    policies = {key: row["name"] for key, row in made["policies"].items()}
    assert policies == {"pi": "none", "pi_c": "everything"}

    page = words(raw / "m.html")
    assert "its points are rounded down, and fewer than 10 are 8" in page
    assert "Not counted on labels" in page and "No promise rests on them." in page
    assert "The trace rate enters the guarantee" not in page
    # Who is held out is a coin's, so the first day may be nobody's who was trained on.
    assert f"of {made['corpus']['users']} people, taken from a corpus of 2026-01-01 to" in page
    card = (raw / "m" / "README.md").read_text()
    assert made["corpus"]["turns"] < 30
    assert f"(a text of {made['corpus']['turns']} data points)" in card  # no canary is text


UNREAD = {
    "dpsgd": {"batch_size", "learning_rate", "pub_passes", "policy", "conservative", "gamma", "per",
              "coin", "dedup", "duplicates"},
    "sgd": {"epsilon", "delta", "accountant", "clip_norm", "sampling_probability", "dedup",
            "private_learning_rate", "normaliser", "noise_multiplier"},
    "crt": {"batch_size", "learning_rate", "pub_passes"},  # of a text that is all private
}  # fmt: skip


@pytest.mark.parametrize("method", UNREAD)
def test_no_file_of_a_release_names_a_setting_that_nothing_reads(tmp_path, method):
    """Beside a model of DP-SGD stood "batch_size": 32 and "policy": "regex"."""
    text, out = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "m"
    careful = {"conservative": "everything"} if method == "crt" else {}
    budget = {} if method == "sgd" else {"epsilon": 3.0}
    made = train_on_corpus.train(text, method=method, width=2, epochs=1, out=out, **careful,
                                 **budget, card=model_card.render_model_card)  # fmt: skip
    told = json.loads((out / "experiment.json").read_text())
    marked = json.loads((out / "crtlib.json").read_text())["options"]
    assert told == marked == made.settings == made.facts["settings"]
    assert told.keys() == settings_on(out / "README.md").keys() - {"setting"}
    of_other_models = {"context", "long", "heads", "lora_alpha", "lora_targets", "copies"}
    assert not told.keys() & (UNREAD[method] | of_other_models)
    assert (told["method"], told["unit"], told["hidden"], told["canaries"]) == (
        method,
        "turn",
        2,
        0,
    )
