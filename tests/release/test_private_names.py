"""No name, kind, text or hash of what is private leaves by a message or a readable file."""

import fnmatch
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from confide import odometer
from confide.commands import training as project
from confide.labels import imports, label_tasks
from confide.reports import model_card
from crtlib.screening import expression_files, policy, rates, regex_policies
from crtlib.text import corpora, data_points, jsonl, records
from crtlib.text.records import Point, Secret, Turn
from tests import trainings
from tests.modes import list_readable_files
from tests.texts import write_coded_messages, write_simulated_text, write_talks
from tests.trainings import CRT, make_certificate


def test_a_message_decides_nothing_about_the_speakers_after_it():
    said = [Turn(name, "x") for name in ("Ada", "Bob", "Ada", "Bob")]
    whole, less = (
        data_points.with_role_speakers(records.Dialogue("d", "u", tuple(t)))
        for t in (said, said[1:])
    )
    assert [t.speaker for t in whole.turns][1:] == [t.speaker for t in less.turns]


def test_no_text_and_no_person_is_in_what_a_traceback_shows():
    turn = records.Turn("Wolframina", "call Wolframina", (records.Secret("name", 5, 15),))
    dialogue = records.Dialogue("d", "Wolframina", (turn,))
    shown = [
        turn,
        dialogue,
        records.Corpus("c", (dialogue,)),
        *data_points.make_points(records.Corpus("c", (dialogue,)), "turn"),
    ]
    shown += [label_tasks.LabelTask("judge-1", "d", "Wolframina", 0, "judge", *["Wolframina"] * 3)]
    shown += [imports.ExportedSpan(kind="name", start=0, end=10, value="Wolframina")]
    assert "Wolframina" not in repr(shown)


def test_a_certificate_has_no_hash_by_which_candidates_of_the_text_can_be_tried(tmp_path):
    """A line's own hash is of the text's, its time and what the release says of the run."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    for name in ("one", "two"):
        trainings.train(text, out=tmp_path / name, **CRT)
    made = make_certificate(tmp_path / "two", tmp_path / "two.html")
    (home,) = tmp_path.glob("*.odometer")
    assert len(made["spent_before"]["entries"]) == 1
    assert not {e.entry for e in odometer.read_entries(home)} & set(made["spent_before"]["entries"])


def test_a_name_is_text_on_the_model_card():
    name = 'a](http://x) <script>x</script>\n# b `c` "d|'
    facts = {"name": name, "parameters": 1, "trained_parameters": 1, "base": name, "kind": None,
             "method": {"name": "crt", "label": name}, "corpus": {"name": name, "points": 1},
             "settings": {"init": name}, "promise": "none", "perplexity": None, "adapters": True,
             "recurrent": False}  # fmt: skip
    card = model_card.render_model_card(facts).partition("\n---\n")[2]  # the front matter is JSON
    assert not re.search(r'(?<!\\)(<script|\](?=\(http)|"d)|\n# b', card)


def test_no_name_of_a_person_makes_him_a_canary(tmp_path):
    """Who was called "canary-1" was counted nowhere; in raw text the name ended a training."""
    text, _ = write_coded_messages(tmp_path / "c.jsonl", labelled=24)
    text.write_text(text.read_text().replace('"user": "u', '"user": " canary-'))
    people = corpora.read_corpus_at(text)
    known = rates.measure_rates(
        data_points.make_points(people, "turn"),
        regex_policies.none_policy,
        regex_policies.none_policy,
    )
    assert known.public.judged_secrets == 24 and known.public.failures == 24


def test_the_kind_of_a_label_leaves_only_by_a_known_name(tmp_path):
    """A label's kind, which is any text, stood in the certificate."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    raw = text.read_text().replace('"kind": "name"', '"kind": "name of Ada Lovelace"')
    text.write_text(raw)
    trainings.train(text, out=tmp_path / "m", **CRT)
    value = make_certificate(tmp_path / "m", tmp_path / "m.html")
    assert value["verdict"] == "holds" and "other" in value["rates"]["by_kind"]
    shown = [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_mode & 0o004]
    assert not [p for p in shown if p != text and "Lovelace" in p.read_text(errors="replace")]


def test_the_kind_of_a_flag_leaves_a_screening_only_by_a_known_name(tmp_path, run):
    """A list of customers with a column kind: it stood in summary.json and screening.html (0644).
    In the rates alone it was one of a few names."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    value = next(v for d in jsonl.read_jsonl(text) for t in d.turns for v in t.values())
    (tmp_path / "l.csv").write_text(f"secret,kind\n{value},patient Lovelace\n")
    words = ["--policy", f"list:{tmp_path}/l.csv", "--out", tmp_path / "s"]
    assert run("screen", text, *words)[0] == 0
    assert list_readable_files(tmp_path / "s", "Lovelace") == []


def test_what_was_private_is_private_when_it_is_converted(tmp_path, run):
    """A folder of ingest (0700) became JSONL of 0644, of which SECURITY.md says that it was public
    before; what is one's own is read by every command as it is."""
    (tmp_path / "t.csv").write_text("customer,ticket,body\nann,1,I am Ada Lovelace\nbob,2,hello\n")
    assert run("ingest", tmp_path / "t.csv", "--yes", "--out", tmp_path / "corpus")[0] == 0
    code = run("convert", tmp_path / "corpus", "--out", tmp_path / "x.jsonl")[0]
    assert code != 0 or not (tmp_path / "x.jsonl").stat().st_mode & 0o077


def test_the_name_of_a_speaker_decides_nothing_that_is_shown(tmp_path, run):
    """ "other speakers are S1, S2, ... in their order", says SECURITY.md; they are SHA-256 of the
    name modulo 9, in public text (0644) and in what trains without noise: of two candidates one is
    out with a chance of 8 in 9, and no rate counts it."""
    shown = []
    for name in ("Ada", "Eva"):
        path = write_talks(tmp_path / f"{name}.jsonl", ["hello there"] * 20)
        path.write_text(path.read_text().replace('"USR"', f'"{name}"'))
        words = ["--policy", "regex:customersim", "--conservative", "regex:customersim"]
        words += ["--out", tmp_path / name]
        assert run("screen", path, *words)[0] == 0
        parts = (tmp_path / name / "public").rglob("*.parquet")
        rows = pd.concat(map(pd.read_parquet, parts))
        shown.append({f"{row.text} {row.turns}" for row in rows.itertuples()})
    assert "hello there" in min(shown[0]) and shown[0] == shown[1]


ROOT = Path(project.__file__).parents[2]


def test_no_image_holds_what_is_private():
    """Exact spans of private text are in .screened.part; names.parquet has the secrets in clear."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line.removesuffix("/").removeprefix("**/") for line in lines if line[:1] != "#"]
    for name in ("plan/names.parquet", "plan/holders.parquet", ".screened.part/private.txt"):
        parts = [name, *Path(name).parts]
        assert any(fnmatch.fnmatchcase(part, p) for part in parts for p in patterns if p), name


def test_a_project_puts_nothing_private_under_version_control(tmp_path):
    """ "All else that is made here is private, and .gitignore keeps it out". Fault: it was a list,
    without mail, chats, second models, ``again/page.html`` and lists of names in ``policies``."""
    rules = (ROOT / "confide/commands/project/gitignore").read_text()
    (tmp_path / ".gitignore").write_text(rules)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    shared = [".gitignore", "crtlib.toml", "Makefile", "README.md", "policies/ours.toml"]
    private = ["in.mbox", "chat.txt", "slack.zip", "again/page.html", "leaver.html", "model-2/x"]
    private += ["policies/customers.txt", ".screened.shards/0", "labels-a (1).json", "notes.md"]
    for name in shared + private:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run([*git, "add", "-A"], check=True)
    kept = subprocess.run([*git, "ls-files"], check=True, capture_output=True, text=True).stdout
    assert sorted(kept.split()) == sorted(shared)


def test_an_error_names_no_person(tmp_path, monkeypatch):
    """Where people are the unit a point is called as its person, and messages named the point:
    a slow expression, or spans of another package that do not fit."""
    text = write_simulated_text(tmp_path / "c.jsonl", people="Ada Lovelace ")
    bad = policy.Policy("company", lambda points: [(Secret("x", 5, 2),) for _ in points])
    (point, *_) = data_points.make_points(records.Corpus("", tuple(jsonl.read_jsonl(text))), "user")
    with pytest.raises(ValueError) as error:
        bad([point])
    assert "Lovelace" not in str(error.value) and "Lovelace" not in repr(point)
    (tmp_path / "p.toml").write_text("[code]\npattern = '(a+)+b'\n")
    monkeypatch.setattr(expression_files, "MATCH_TIMEOUT_SECONDS", 0.01)
    slow = replace(point, text="a" * 5000 + " - b c !", secrets=(), spoken_spans=())
    with pytest.raises(policy.UnansweredError) as error:
        expression_files.expression_file_policy(str(tmp_path / "p.toml"))([slow])
    assert "Lovelace" not in str(error.value)


def test_what_does_not_fit_is_told_without_its_kind():
    """The kind of a span of a policy of another package, any text, stood in the message."""
    point = Point("d", "u", "Ada Lovelace")
    for spans in ([Secret("Ada", 5, 99)], [Secret("Ada", 0, 3), Secret("Lovelace", 2, 5)]):
        with pytest.raises(ValueError) as error:
            policy.Policy("company", lambda _, spans=spans: [spans])([point])
        assert "Ada" not in str(error.value) and "Lovelace" not in str(error.value)
