"""From a file of messages to a model and what it gives away: every command, in order."""

import csv
import json
import random
import sys

import pandas as pd
import pytest

from confide import __main__ as cli
from confide.labels import label_tasks
from crtlib.intervals import at_most
from crtlib.text import corpora

KINDS = {"name": "name", "address": "address", "phone": "phone"}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*args, code=0):
        monkeypatch.setattr(sys, "argv", ["crtlib", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert end.value.code == code, err
        return out if code == 0 else err

    return call


def messages(name, limit, folder):
    """A CSV as somebody would export it: columns in any order, a BOM, four rows in disorder; and
    the secrets of each text."""
    split = "train" if name == "customersim" else "dev"
    dialogues = corpora.load_corpus(name, split, limit=limit).dialogues
    rows = [
        {"body": t.text, "customer": d.user, "sender": t.speaker, "ticket": d.id, "channel": "web"}
        for d in dialogues
        for t in d.turns
    ]
    names = list(rows[0])
    random.Random(1).shuffle(names)
    with (folder / "messages.csv").open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)
        table.writerow(rows[0] | {"body": ""})
        table.writerow(rows[0] | {"customer": " "})
        csv.writer(file).writerows([["too", "few"], ["far", "too", "many", "cells", "here", "!"]])
    return {t.text: t.secrets for d in dialogues for t in d.turns}


def kind(secret):
    return KINDS.get(secret.kind, "id")


def exported(known, folder="labels"):
    """What the page exports after somebody has read all turns."""
    tasks = [
        {
            "task": t.task,
            "done": True,
            "secrets": [{"kind": kind(s), "start": s.start, "end": s.end} for s in known[t.text]],
        }
        for t in label_tasks.read_tasks(folder)
    ]
    digest = label_tasks.read_label_facts(folder)["labels"]
    return {"schema": "crtlib/labels/1", "labels": digest, "annotator": "ann", "tasks": tasks}


@pytest.mark.parametrize(("name", "limit"), [("customersim", 120), ("schema_guided", 300)])
def test_from_messages_to_a_model_that_says_what_it_gives_away(run, tmp_path, name, limit):
    if not corpora.is_corpus_available(name, "train" if name == "customersim" else "dev"):
        pytest.skip(f"{name} is not here")
    known = messages(name, limit, tmp_path)
    refused = run("ingest", "messages.csv", "--out", "corpus", code=2)
    assert "--skip-bad leaves it out" in refused and refused.count("\n") == 1
    assert "in all 4 of" in refused and "2 another number of columns (--skip-bad)" in refused
    printed = run("ingest", "messages.csv", "--skip-bad", "--out", "corpus")
    assert "user=customer  thread=ticket  speaker=sender  text=body" in printed
    assert "left out 4: 2 another number of columns" in printed
    assert "ingest messages.csv" in run("screen", "messages.csv", "--out", "s", code=2)
    assert "--policy: none fits" in run("screen", "corpus", "--out", "s", code=2)

    people = corpora.read_corpus_at("corpus")
    most = len({d.user for d in people.dialogues})
    sizes = ["--turns", most // 2, "--teach", most // 2, "--seed", 1]
    values = sorted({t[s.start : s.end] for t, spans in known.items() for s in spans})
    listed = [v for v in values if len(v) > 3][::2]
    holders = pd.DataFrame({"user": [f"u{i % 9}" for i in range(len(listed))], "secret": listed})
    holders.to_csv("holders.csv", index=False)
    sealed = ["--seal", "list:holders.csv"]  # before anybody reads
    run("label", "sample", "corpus", *sizes, *sealed, "--out", "labels")
    (tmp_path / "done.json").write_text(json.dumps(exported(known)))
    assert "--labels: the teaching" not in run(
        "label", "import", "corpus", "done.json", "--labels", "labels"
    )
    run("tagger", "corpus", "--labels", "labels", "--epochs", 1, "--out", "tagger")
    policy = ["--policy", "list:holders.csv+tagger:tagger", "--conservative", "cautious"]
    printed = run("screen", "corpus", *policy, "--labels", "labels", "--out", "screened")
    summary = json.loads((tmp_path / "screened" / "summary.json").read_text())
    assert "one secret a user" in printed and summary["shift"]
    assert summary["labels"]["judged"] == 3  # both policies of the tagger, and this pair
    assert summary["labels"]["drawn"] == "at_random" and summary["rates"]["trace"]["of"] > 3
    page = (tmp_path / "screened" / "screening.html").read_text()
    assert not any(value in page for value in listed if len(value) > 6)

    printed = run("train", "screened", "--epochs", 1, "--out", "model")
    upper = summary["rates"]["trace"]["upper"]
    assert "Bayesian confidentiality" in printed and f"{at_most(upper)})" in printed
    assert "holds" in run("certify", "model", "--out", "certificate.html")
    certificate = json.loads((tmp_path / "certificate.json").read_text())
    assert certificate["rates"]["trace"]["upper"] == pytest.approx(upper, rel=1e-2)
    assert certificate["labels"]["drawn"] == "at_random"
    assert certificate["policies"]["pi"]["name"] == "list:holders.csv+tagger:tagger"
    run("certify", "model", "--out", "certificate.html", "--verify")
    run("report", "model", "--corpus", "screened", "--out", "report")
    assert (tmp_path / "report" / "report.html").is_file()

    printed = run("train", "corpus", "--method", "sgd", "--epochs", 1, "--out", "baseline")
    assert "no guarantee: this method adds no noise, and it read the text as it is" in printed

    protect = ["--by", "user", "--posterior", 0.1, "--scale", 5, "--steps", 20]
    printed = run("protect", "corpus", "--secrets", "holders.csv", *protect, "--out", "plan")
    assert "secrets 9 (users)" in printed
    words = ["train", "corpus", "--plan", "plan", "--epochs", 1, "--out", "planned"]
    assert "void: What earlier models spent was counted for messages" in run(*words, code=2)
    run(*words, "--repeatable-noise")
    told = pd.read_parquet("planned.work/secrets.parquet")
    assert len(told) == 9 and (told.posterior <= told.promised).all()


def test_a_project_runs_the_path_and_stops_where_people_label(run, tmp_path):
    known = messages("customersim", 60, tmp_path)
    run("new", "project")
    (tmp_path / "messages.csv").rename(tmp_path / "project" / "messages.csv")
    file = tmp_path / "project" / "crtlib.toml"
    text = (
        file.read_text().replace("secrets = 400", "turns = 30").replace("teach = 600", "teach = 20")
    )
    text = text.replace("[tagger]", "[tagger]\nepochs = 1\n#")
    text = text.replace("epsilon = 3.0", "epochs = 1")
    file.write_text(text + "bogus_k = 1\n")
    assert "crtlib.toml, [certify] bogus_k: no such option" in run("run", "project", code=2)
    file.write_text(text.replace("epochs = 1", "epochs = 'x'"))
    assert "crtlib.toml, [tagger] epochs = x: " in run("run", "project", code=2)
    file.write_text(text.replace("skip_bad = true", "skip_bad = true\nmax_bad = 0.1"))
    assert "turns wait in labels/page.html" in run("run", "project")
    done = json.dumps(exported(known, "project/labels"))
    (tmp_path / "project" / "labels-ann-20260301.json").write_text(done)
    printed = run("run", "project", "--until", "train")
    # Which one follows from the labels, which the operating system draws.
    promised = ("differential privacy", "Bayesian confidentiality")
    assert any(words in printed for words in promised), printed.splitlines()[-8:]
    again = run("run", "project", "--until", "train")
    assert [line for line in again.splitlines() if not line.startswith("crtlib ")][-4:] == [
        "labels: up to date",
        "tagger: up to date",
        "screened: up to date",
        "train: up to date",
    ]
    assert "is not empty" in run("new", "project", code=2)
