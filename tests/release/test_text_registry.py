"""By what the registry of a person knows a text again, and what a certificate says of it."""

import json
import random
import re
import shutil
import sqlite3

import pandas as pd
import pytest

from confide import odometer, odometer_lines, text_registry
from confide.labels import drawing, imports, label_tasks, registry
from confide.release import certifiable_run, certificate_parts, certify
from confide.reports import screening_page, sentences
from confide.screening.corpus_screening import ScreeningOptions
from confide.text import registry_units
from confide.text.registry_units import (
    LONG_MESSAGE_CHARACTERS,
    MOST_CONVERSATIONS_OF_A_MESSAGE,
    SHORT_TALK_CHARACTERS,
)
from confide.training import train_on_corpus
from crtlib.accounting.events import SampledGaussian
from crtlib.checks import DamagedError
from crtlib.text import corpora, customersim, identity, jsonl
from crtlib.text.records import Dialogue, Turn
from tests import trainings
from tests.texts import related_texts, write_messages, write_simulated_text
from tests.trainings import CRT, TINY, make_certificate

SMALL = {
    "method": "dpsgd", "width": 2, "epochs": 1, "sampling_probability": 1.0, "epsilon": 3.0,
    "delta": 1e-4,
}  # fmt: skip
WORDS = [
    "order",
    "box",
    "late",
    "blue",
    "name",
    "card",
    "door",
    "bill",
    "post",
    "lost",
    "kind",
    "parcel",
]


def long_messages(seed, number):
    """So many messages of more than 80 characters, each its own."""
    coin = random.Random(seed)
    return [" ".join([*coin.choices(WORDS, k=18), f"{seed}-{k}"]) for k in range(number)]


def write(path, talks, user=""):
    """A text of conversations, of nobody who is named or of one person."""
    jsonl.write_jsonl(
        [
            Dialogue(f"{path.stem}-{k}", user, tuple(Turn("USR", text) for text in texts))
            for k, texts in enumerate(talks)
        ],
        path,
    )
    return path


def related(*paths):
    """What the registry finds of the first text in common with each of the others."""
    registry = text_registry.Registry(text_registry.registry_folder())
    names = [corpora.hash_corpus(path) for path in paths]
    for path in paths:
        text_registry.register_text(path)
    found = registry.find_related_texts(names[0])
    return [found.get(name) for name in names[1:]]


def two_queues(home):
    """Each ticket stands in the first export twice, and has one answer more in the second."""
    tickets = [long_messages(f"t{k}", 2) for k in range(30)]
    january = tickets + [[*texts, "Moved to queue B."] for texts in tickets]
    february = [[*texts, *long_messages(f"a{k}", 1)] for k, texts in enumerate(tickets)]
    return write(home / "january.jsonl", january), write(home / "february.jsonl", february)


def test_an_export_that_has_each_long_message_twice_is_known(tmp_path):
    """All long messages of February stood in January, and its certificate counted February alone
    and said that no earlier run was known, as far as messages of 80 characters or more tell."""
    texts = two_queues(tmp_path)
    (found,) = related(*texts)
    assert found and found["message"] == 60
    for text in texts:
        train_on_corpus.train(text, out=tmp_path / text.stem, **SMALL)
    trained = certifiable_run.read_certifiable_run(tmp_path / "february")
    value = certificate_parts.collect_certificate_parts(trained)
    assert value["spent_before"]["runs"] == 1


def test_a_standing_phrase_makes_no_two_texts_the_same(tmp_path):
    """What an agent says to everybody, and a text of another desk says to everybody, too."""
    phrase, few = long_messages("phrase", 1), MOST_CONVERSATIONS_OF_A_MESSAGE
    one, two = ([long_messages(f"{n}{k}", 1) + phrase for k in range(9)] for n in "ab")
    texts = write(tmp_path / "one.jsonl", one), write(tmp_path / "two.jsonl", two)
    assert related(*texts) == [None]
    first = write(tmp_path / "few.jsonl", one[:few])
    (found,) = related(first, write(tmp_path / "also.jsonl", two[:few]))
    assert found and found["message"] == 1
    own = write(tmp_path / "own.jsonl", one, "ann")  # her own words, however often
    (found,) = related(own, write(tmp_path / "hers.jsonl", two, "ann@x.org"))
    assert found and found["message"] == 1


def test_what_screening_left_is_known_though_the_text_was_entered_before(tmp_path):
    """A text that was trained on, then screened, and what was left taken in again: nothing knew
    that, as the text was in the registry already."""
    talks = [[f"my phone 555-010-{k:04d}, {long_messages(k, 1)[0]}"] for k in range(20)]
    raw = write(tmp_path / "raw.jsonl", talks)
    text_registry.register_text(raw)
    options = ScreeningOptions("regex:customersim", "none")
    screening_page.screen_into_folder(raw, tmp_path / "s", options)
    text_registry.register_text(tmp_path / "s")
    left = [[d.turns[0].text] for d in corpora.read_dialogues(tmp_path / "s")]
    assert not any("555-010" in text for (text,) in left)
    again = text_registry.register_text(write(tmp_path / "again.jsonl", left))
    found = text_registry.Registry(text_registry.registry_folder()).find_related_texts(again)
    assert corpora.hash_corpus(raw) in found


def test_the_page_says_by_what_a_text_is_known(tmp_path):
    """It said that all messages of 80 characters or more are."""
    text = write(tmp_path / "one.jsonl", [long_messages(k, 2) for k in range(30)])
    train_on_corpus.train(text, out=tmp_path / "m", **SMALL)
    value = certify.write_certificate(tmp_path / "m", tmp_path / "page.html", secrets_per_person=())
    said = " ".join(sentences.select_sentences(value)["no_earlier_run"])
    for compared in (
        f"or all that one person says, of {SHORT_TALK_CHARACTERS} characters or more",
        f"message of {LONG_MESSAGE_CHARACTERS} characters or more",
        f"at most {MOST_CONVERSATIONS_OF_A_MESSAGE} conversations, or one person, have",
        f"{registry_units.MAX_IDENTIFYING_MESSAGES:,} messages",
        "who speaks, other white space, marks that nobody sees",
        "Nothing else is compared",
    ):
        assert compared in said


# --------------------------------------------------------------------------- labels
def labelled(home, name, user):
    """How many pairs have judged so far, after a draw of five turns from one text of sixty people,
    whose conversations and people are called by ``name``, was read and judged a pair."""
    text, folder = home / f"{name}.jsonl", home / f"labels-{name}"
    talks = [
        Dialogue(
            f"{name}-{k}", user.format(k), (Turn("USR", f"order {k}: my number is 555-{k:04d}"),)
        )
        for k in range(60)
    ]
    jsonl.write_jsonl(talks, text)
    seed = sum(map(ord, name))
    drawing.draw_label_tasks(text, folder, turns=5, seed=seed, forms=["jsonl"])
    page = {"schema": "crtlib/labels/1", "labels": label_tasks.read_label_facts(folder)["labels"]}
    tasks = []
    for t in label_tasks.read_tasks(folder):
        number = {"kind": "id", "start": t.text.index("555-"), "end": len(t.text)}
        tasks.append({"task": t.task, "done": True, "secrets": [number]})
    (home / "read.json").write_text(json.dumps(page | {"annotator": "ann", "tasks": tasks}))
    imports.import_labels(text, home / "read.json", folder)
    out, options = home / f"screened-{name}", ScreeningOptions("regex:customersim", "everything")
    screening_page.screen_into_folder(text, out, options, labels=folder)
    return json.loads((out / "private" / "summary.json").read_text())["labels"]["judged"]


def test_draws_from_one_text_under_other_names_count(tmp_path):
    """Six draws of one text whose conversations and people were called otherwise each time: each
    judged "1", the bounds were 36 to 58 %, and the kindest was certified."""
    assert labelled(tmp_path, "a", "ann{}@x.org") == 1
    assert labelled(tmp_path, "b", "customer {}") == 2
    assert labelled(tmp_path, "c", "") == 3
    folder = label_tasks.read_label_facts(tmp_path / "labels-a")
    told = {"labels": folder["labels"]}
    assert registry.register_judged_pairs(told, folder["corpus"]) == 3  # of the first, by now


def test_draws_from_a_text_of_strangers_do_not_count(tmp_path):
    registry.register_judged_pairs({"labels": "others"}, "c" * 64, [("p", "q")], ["another turn"])
    assert labelled(tmp_path, "a", "ann{}@x.org") == 1


def test_two_texts_share_what_makes_them_related(tmp_path):
    """The rule of the registry, of two texts that it need not know."""
    said = long_messages(0, 3)
    first = write(tmp_path / "a.jsonl", [["hello", said[0]], ["hello", said[1]]], user="ann")
    talks = {"b": [["hello", said[0]]], "c": [["hello"], ["yes"]], "d": [["hello", said[2]]]}
    for name, user, kinds in (
        ("b", "bob", {"message", "talk"}), ("c", "bob", set()), ("d", "ann", {"user"})
    ):  # fmt: skip
        second = write(tmp_path / f"{name}.jsonl", talks[name], user)
        shared = text_registry.count_shared_units(first, second)
        registry_ = text_registry.Registry(tmp_path / f"registry-{name}")
        for path in (first, second):
            registry_.register(corpora.hash_corpus(path), registry_units.hash_registry_units(path))
        known = registry_.find_related_texts(corpora.hash_corpus(first)).get(
            corpora.hash_corpus(second), {}
        )
        assert shared.pop("words", 0) == (name == "b")
        assert kinds <= set(shared) == set(known) - {*text_registry.OWNERSHIP_KINDS}
        assert all(known[kind] == n for kind, n in shared.items())
    short = [write(tmp_path / f"{k}.jsonl", [["yes"], ["no"], ["now"]][:k], "eve") for k in (1, 3)]
    mine = write(tmp_path / "mine.jsonl", [["why"], ["yes"]], "bob")  # another number, and person
    assert [text_registry.count_shared_units(mine, s) for s in short] == [{"words": 1}, {}]


def test_a_screened_folder_elsewhere_is_of_the_same_text(tmp_path, run):
    """With --out in another folder the earlier runs were forgotten."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", **CRT)
    (tmp_path / "far").mkdir()
    screened = tmp_path / "far" / "screened"
    assert run("screen", text, "--policy", "regex:customersim", "--out", screened)[0] == 0
    settings = {n: v for n, v in CRT.items() if n not in ("policy", "unit")}
    trainings.train(screened, out=tmp_path / "two", **settings)
    assert make_certificate(tmp_path / "two", tmp_path / "two.html")["spent_before"]["runs"] == 1


def test_what_was_screened_first_and_moved_is_of_the_same_text(tmp_path, run):
    text = write_simulated_text(tmp_path / "c.jsonl")
    screened = tmp_path / "screened"
    assert run("screen", text, "--policy", "regex:customersim", "--out", screened)[0] == 0
    settings = {n: v for n, v in CRT.items() if n not in ("policy", "unit")}
    trainings.train(screened, out=tmp_path / "one", **settings)
    with text.open("a") as file:  # and grew
        file.write(write_simulated_text(tmp_path / "more.jsonl", 4).read_text())
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(text, tmp_path / "elsewhere" / "c.jsonl")
    trainings.train(moved, out=tmp_path / "two", **CRT)
    assert make_certificate(tmp_path / "two", tmp_path / "two.html")["spent_before"]["runs"] == 1


def test_two_months_of_the_same_people_compose_and_strangers_do_not(tmp_path):
    """January and February share no message; a budget a month was spent on the same people."""
    for name, seed, people in (("january", 3, "ada"), ("february", 4, "ada"), ("other", 5, "eve")):
        text = write_simulated_text(tmp_path / f"{name}.jsonl", seed, people)
        settings = TINY | {"method": "user_dpsgd", "unit": "turn", "epsilon": 2.0}
        trainings.train(text, out=tmp_path / name, **settings)
    made = {
        n: make_certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("january", "february")
    }
    both = made["february"]["guarantee"]["missed"]["epsilon"]
    assert made["january"]["spent_before"]["runs"] == 0
    assert made["february"]["spent_before"]["runs"] == 1
    assert both > 1.2 * made["january"]["guarantee"]["missed"]["epsilon"]
    assert make_certificate(tmp_path / "other", tmp_path / "o.html")["spent_before"]["runs"] == 0


def test_a_person_is_one_unit_in_every_form_of_file(tmp_path, run):
    """January's CSV said "7.0" and "Ann@Example.com", February's Parquet 7 and "ann@example.com":
    nobody had an earlier run, and one person was two users."""
    rows = "".join(f"{who},{k},hello {k}\n" for k, who in enumerate(["7.0", " 7", "Ann@X.org"]))
    (tmp_path / "january.csv").write_text(f"customer,ticket,body\n{rows}")
    table = {"customer": [7.0, None], "ticket": ["a", "b"], "body": ["moin", "servus"]}
    pd.DataFrame(table).to_parquet(tmp_path / "numbers.parquet")
    pd.DataFrame(table | {"customer": ["\uff17", "ann@x.org"]}).to_parquet(
        tmp_path / "wide.parquet"
    )
    for name in ("january.csv", "numbers.parquet", "wide.parquet"):
        words = ["ingest", tmp_path / name, "--yes", "--skip-bad", "--max-bad", 0.5]
        assert run(*words, "--out", tmp_path / name.partition(".")[0])[0] == 0
    people = {d.user for d in corpora.read_dialogues(tmp_path / "january")}
    assert people == {"7", "ann@x.org"}
    assert related_texts(*(tmp_path / n for n in ("numbers", "january", "wide"))) == [True, True]


def test_a_text_that_was_cut_in_another_way_is_known_by_people_and_by_messages(tmp_path):
    """Conversations by another column, or another gap, had another hash each."""
    people = [f"p{k}" for k in range(9)]
    one = write_messages(tmp_path / "one.jsonl", people)
    named = write_messages(tmp_path / "named.jsonl", people[:1], month="June")
    other = write_messages(tmp_path / "other.jsonl", people, cut=1)
    nobody = tmp_path / "nobody.jsonl"
    nobody.write_text(re.sub(r'"user": "\w+"', '"user": ""', other.read_text()))
    strangers = write_messages(tmp_path / "strangers.jsonl", [f"q{k}" for k in range(9)])
    assert related_texts(one, named, other, nobody, strangers) == [True, True, True, False]
    assert related_texts(nobody, other, named) == [True, False]


def test_what_a_screening_left_is_of_the_same_text_wherever_it_was_copied(tmp_path, run):
    text = write_messages(tmp_path / "c.jsonl", [f"p{k}" for k in range(14)])
    words = ["--policy", "regex:customersim", "--out", tmp_path / "s"]
    assert run("screen", text, *words)[0] == 0
    rows = [
        shutil.copy(part, tmp_path / f"{k}.parquet")
        for k, part in enumerate((tmp_path / "s").glob("*/data/*.parquet"))
    ]
    words = ["--user", "user", "--thread", "id", "--text", "text", "--yes"]
    assert run("ingest", *rows, *words, "--out", tmp_path / "again")[0] == 0
    assert related_texts(tmp_path / "s", tmp_path / "again") == [True]


def test_a_certificate_elsewhere_knows_what_was_known_when_it_trained(tmp_path, monkeypatch):
    """In another home the run forgot the earlier one, which the registry alone had known."""
    people = [f"p{k}" for k in range(14)]
    for name in ("may", "june"):
        text = write_messages(tmp_path / f"{name}.jsonl", people, month=name)
        trainings.train(text, out=tmp_path / name, **TINY | {"method": "user_dpsgd"})
    assert make_certificate(tmp_path / "june", tmp_path / "a.html")["spent_before"]["runs"] == 1
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "another"))
    page = make_certificate(tmp_path / "june", tmp_path / "b.html")
    assert page["verdict"] == "void" and "not known here" in " ".join(page["void_because"])
    monkeypatch.setenv("CRTLIB_REGISTRY", "relative")
    with pytest.raises(ValueError, match="CRTLIB_REGISTRY='relative': must be an absolute path"):
        text_registry.registry_folder()


def test_real_people_behind_a_simulated_conversation_are_known(tmp_path):
    """One simulated conversation before them, and nobody in the text was a person."""
    mixed, alone = (
        tmp_path / "mixed.jsonl",
        write_messages(tmp_path / "alone.jsonl", ["p1"], month="June"),
    )
    jsonl.write_jsonl(customersim.simulate_corpus(2, 7).dialogues, mixed)
    mixed.write_text(mixed.read_text() + write_messages(tmp_path / "x.jsonl", ["p1"]).read_text())
    other = tmp_path / "other.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(2, 8).dialogues, other)
    assert related_texts(mixed, alone, other) == [True, False]


def test_runs_of_another_unit_are_found_and_so_are_people_behind_a_screening(tmp_path, run):
    """A screened folder that came from elsewhere had no units: the same people's next month began
    at nothing; so did it for a run of another unit."""
    people = [f"p{k}" for k in range(14)]
    for name in ("may", "june"):
        write_messages(tmp_path / f"{name}.jsonl", people, month=name)
    words = ["screen", tmp_path / "may.jsonl", "--policy", "regex:customersim"]
    assert run(*words, "--conservative", "cautious", "--out", tmp_path / "s")[0] == 0
    for file in text_registry.registry_folder().glob("*"):
        file.unlink()  # another machine's
    settings = {n: v for n, v in CRT.items() if n not in ("policy", "unit")}
    trainings.train(tmp_path / "s", out=tmp_path / "one", **settings)
    january, own = (tmp_path / "june.jsonl", TINY | {"epsilon": 3.0})
    trainings.train(january, out=tmp_path / "two", method="user_dpsgd", **own)
    trainings.train(january, out=tmp_path / "three", method="dpsgd", **own)
    made = [make_certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("two", "three")]
    seen = [(c["unit"], c["spent_before"]["runs"] + c["spent_before"]["unprotected"]) for c in made]
    assert seen == [("user", 1), ("turn", 2)]


def test_a_person_is_one_with_a_mark_that_nobody_sees():
    """As spreadsheets and chats leave them: a zero-width space, a direction."""
    assert {
        identity.normalise_unit_name(name) for name in ("7", "7\u200b", "\u200e7", "\ufeff7")
    } == {"7"}


@pytest.mark.parametrize("void", [(), None])
def test_runs_of_a_ledger_that_was_taken_over_are_known_to_other_texts(tmp_path, void):
    """January had a run of before 0.3, which does not say whether it is void, or a colleague's: its
    certificates add it, or say that it does not count. So do February's, of the same people."""
    january, february = (
        write_simulated_text(tmp_path / f"{name}.jsonl", seed, "ada")
        for name, seed in (("january", 3), ("february", 4))
    )
    home, sha = tmp_path / "january.jsonl.odometer", corpora.hash_corpus(january)
    step = SampledGaussian(0.01, 1.0, 100)
    spend = {"unit": "user", "method": "crt", "relation": "replace", "screening": "5" * 64,
             "gamma": 0.1, "delta2": 0.0, "holds": {}, "events": (step,)}  # fmt: skip
    spend["void"] = void
    odometer.add_entry(tmp_path / "old", corpus=sha, run="old", state="started", **spend)
    (line,) = odometer_lines.read_ledger_lines(tmp_path / "old" / odometer_lines.LEDGER_FILE)
    home.mkdir()
    (home / odometer_lines.OLD_LEDGER_FILE).write_text(line + "\n")
    user, runs = CRT | {"unit": "user"}, []
    for text in (january, february):
        trainings.train(text, out=tmp_path / text.stem, **user)
        value = make_certificate(tmp_path / text.stem, tmp_path / f"{text.stem}.html")
        runs.append([value["spent_before"][name] for name in ("runs", "unprotected")])
    assert runs == ([[1, 0], [2, 0]] if void == () else [[0, 1], [1, 1]])


def test_runs_of_a_moved_home_are_known_to_other_texts(tmp_path, monkeypatch):
    """January's folder came with its odometer to a new machine, the registry did not: of January
    all runs count, of February those alone that were trained here."""
    january, february = (
        write_simulated_text(tmp_path / f"{name}.jsonl", seed, "ada")
        for name, seed in (("january", 3), ("february", 4))
    )
    user = CRT | {"unit": "user"}
    trainings.train(january, out=tmp_path / "old", **user)
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "new machine"))
    runs = []
    for text in (january, february):
        trainings.train(text, out=tmp_path / text.stem, **user)
        value = make_certificate(tmp_path / text.stem, tmp_path / f"{text.stem}.html")
        runs.append(value["spent_before"]["runs"])
    assert runs == [1, 2]


def test_a_lost_part_of_the_registry_is_no_new_one(tmp_path, monkeypatch):
    """A backup without its keys: a new key was made, and no text was known again ("any one (3.0,
    1e-04)", "no earlier run is known", after a run on the same messages). Without its labels what
    had been judged was none."""
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "registry"))
    january = write(tmp_path / "january.jsonl", [[text] for text in long_messages("a", 40)])
    later = write(tmp_path / "later.jsonl", [[text] for text in long_messages("a", 41)])
    drawing.draw_label_tasks(january, tmp_path / "labels", turns=20)
    key = (tmp_path / "registry" / "key").read_bytes()

    def without(name, content=None):
        place = tmp_path / f"{name} {content is None}"
        shutil.copytree(tmp_path / "registry", place)
        (place / name).unlink()
        if content is not None:
            (place / name).touch(0o600)
            (place / name).write_bytes(content)
        monkeypatch.setenv("CRTLIB_REGISTRY", str(place))

    for content in (None, key[::-1]):
        without("key", content)
        with pytest.raises(DamagedError, match=r"key in .* is lost, or of another registry"):
            text_registry.register_text(later)
    for content in (None, b""):
        without("labels.sqlite", content)
        with pytest.raises(DamagedError, match=r"labels.sqlite in .* is lost"):
            registry.register_reading("other", "reading")
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "registry"))
    text_registry.register_text(later)
    registry.register_reading("other", "reading")
    with sqlite3.connect(tmp_path / "registry" / "registry.sqlite") as base:
        assert base.execute("SELECT count(*) FROM counted").fetchall() == [(1,)]


def test_a_registry_that_does_not_say_of_which_key_it_is_says_so_from_now_on(tmp_path, monkeypatch):
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "registry"))
    text = write(tmp_path / "january.jsonl", [[text] for text in long_messages("a", 4)])
    text_registry.register_text(text)
    with sqlite3.connect(tmp_path / "registry" / "registry.sqlite") as base:
        base.execute("DELETE FROM known WHERE text = 0")  # as an older crtlib wrote it
    shutil.copytree(tmp_path / "registry", tmp_path / "without")
    (tmp_path / "without" / "key").unlink()
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "without"))
    with pytest.raises(DamagedError, match=r"key in .* is lost"):
        text_registry.register_text(text)
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "registry"))
    text_registry.register_text(text)
    (tmp_path / "registry" / "key").write_bytes(bytes(32))
    with pytest.raises(DamagedError, match=r"key in .* is lost"):
        text_registry.register_text(text)
