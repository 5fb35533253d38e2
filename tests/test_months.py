"""The month after: messages are appended, and a project goes on with what it has."""

import csv
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from confide import odometer, text_registry
from confide.commands import data, training
from confide.labels import judged_turns, label_tasks
from confide.release import void_reasons
from crtlib.accounting.events import SampledGaussian
from crtlib.text import customersim

TALKS = customersim.simulate_corpus(80, 5, "rich").dialogues
PROJECT = """
[ingest]
source = ["messages.csv"]
yes = true
[label]
turns = 20
teach = 15
[tagger]
epochs = 1
"""
CERTIFIED = """
[screen]
policy = "tagger:tagger"
conservative = "{conservative}"
[train]
width = 4
epochs = 1
[certify]
"""


def write_messages(folder, talks):
    """An export, as a help desk writes it."""
    with (folder / "messages.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ticket_id", "customer_no", "sender", "message"])
        table.writerows([d.id, d.user, t.speaker, t.text] for d in talks for t in d.turns)


def read_all_turns(folder):
    """Export what somebody marks who sees every secret of the turns that were drawn."""
    known = {t.text: t.secrets for d in TALKS for t in d.turns}
    about = label_tasks.read_label_facts(folder / "labels")
    tasks = [
        {
            "task": task.task, "done": True,
            "secrets": [{"kind": "id", "start": s.start, "end": s.end} for s in known[task.text]],
        }
        for task in label_tasks.read_tasks(folder / "labels")
    ]  # fmt: skip
    export = {"schema": "crtlib/labels/1", "labels": about["labels"], "annotator": "ann"}
    name = f"labels-ann-{about['labels'][:8]}.json"
    (folder / name).write_text(json.dumps(export | {"tasks": tasks}))


@pytest.fixture
def project(tmp_path, registry):
    write_messages(tmp_path, TALKS[:40])
    (tmp_path / "crtlib.toml").write_text(PROJECT)
    return tmp_path


def test_a_second_month_begins_anew_where_somebody_says_so(project, run, monkeypatch):
    """ "labels: were drawn from corpus 650e, this is 7543; they can teach, but not judge", of which
    nothing followed; and they did not teach."""
    assert "20 turns of 20 users to judge" in run("run", project, "--until", "label")[1]
    read_all_turns(project)
    assert run("run", project, "--until", "label")[0] == 0
    write_messages(project, TALKS)
    code, _, error = run("run", project)
    assert code == 2 and "use --new-text, which moves" in error
    assert not (project / "earlier").exists()
    _, said, _ = run("run", project, "--new-text")
    assert "what was made from the earlier text is in earlier/1; its labels teach" in said
    kept = {path.name.partition("-")[0] for path in (project / "earlier" / "1").iterdir()}
    assert kept == {"labels"}  # and what was exported
    monkeypatch.chdir(project)
    settings = training.read_project_settings(project)
    words = training._step_words("tagger", settings)
    assert words[2:6] == ["--labels", "labels", "--labels", "earlier/1/labels"]
    taught = judged_turns.read_labelled_points(
        "corpus", "earlier/1/labels", part="teach", unit="turn"
    )
    first = {t.text for t in label_tasks.read_tasks("earlier/1/labels") if t.part == "teach"}
    marked = {t.text: bool(t.secrets) for d in TALKS for t in d.turns if t.text in first}
    assert {p.text.partition(": ")[2]: bool(p.secrets) for p in taught} == marked
    talks = [replace(d, turns=tuple(replace(t, text=f"{t.text}!") for t in d.turns)) for d in TALKS]
    write_messages(project, talks)
    run("run", project, "--until", "ingest")
    gone = judged_turns.read_labelled_points(
        "corpus", "earlier/1/labels", part="teach", unit="turn"
    )
    assert not gone


def test_nobody_reads_where_an_earlier_model_voids_all(project, run):
    """Two evenings of reading, a training, and then: void, as every certificate would have been."""
    run("run", project, "--until", "ingest")
    first = text_registry.register_text(project / "corpus")
    odometer.add_entry(
        project / "corpus.odometer",
        registry=text_registry.Registry(text_registry.registry_folder()),
        corpus=first, run="a", state="finished", events=(SampledGaussian(0.1, 1.0, 10),),
        unit="turn", method="crt", relation="replace", screening="5" * 64, gamma=0.1, delta2=0.01,
        holds={}, void=(), repeats_counted=True,
    )  # fmt: skip
    assert void_reasons.reason_before_training(project / "corpus", first) is None
    write_messages(project, TALKS)
    file = project / "crtlib.toml"
    file.write_text(PROJECT + CERTIFIED.format(conservative="cautious"))
    code, _, error = run("run", project)
    assert code == 2 and "a certificate would be void: An earlier run on other text may" in error
    assert not (project / "labels").exists()
    file.write_text(PROJECT)
    assert "turns wait in labels/page.html" in run("run", project)[1]


def test_a_new_project_screens_as_the_readme_and_the_command_do(tmp_path, run):
    """It said "cautious", beside "a month later, with new messages: certified with the first"."""
    assert run("new", tmp_path / "p")[0] == 0
    settings = training.read_project_settings(tmp_path / "p")
    own = settings["screen"]["conservative"]
    assert own == inspect.signature(data.screen).parameters["conservative"].default
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (steps,) = re.findall(r"(?s)or step by step:\n\n```bash\n(.*?)```", readme)
    assert re.findall(r"crtlib screen [^#]*--conservative (\S+)", steps) == [own]
    assert not [*training._describe_later_months(settings)]


def test_who_will_go_on_next_month_is_told_before_anybody_reads(project, run):
    """The setting of a new project was "cautious": the second month then could only say that its
    certificate would be void."""
    file, said = project / "crtlib.toml", "no certificate of a text with further messages can hold"
    file.write_text(PROJECT + CERTIFIED.format(conservative="cautious"))
    lines = run("run", project)[1]
    assert said in lines and lines.index(said) < lines.index("turns wait in labels/page.html")
    screened = CERTIFIED.format(conservative="everything")
    plain = '[train]\npolicy = "regex:customersim"\n[certify]\n'
    for steps in (screened, plain, plain.replace("policy", 'method = "dpsgd"\n#'), ""):
        file.write_text(PROJECT + steps)
        assert (said in run("run", project, "--until", "ingest")[1]) == (steps == plain)


def test_two_months_are_certified_together(project, run):
    file = project / "crtlib.toml"
    file.write_text(PROJECT + CERTIFIED.format(conservative="everything"))
    run("run", project)
    read_all_turns(project)
    assert run("run", project)[0] == 0
    alone = json.loads((project / "certificate.json").read_text())
    write_messages(project, TALKS)
    run("run", project, "--new-text")
    read_all_turns(project)
    code, said, _ = run("run", project)
    assert code == 0 and "certificate.html: holds" in said and "with 1 earlier" in said
    both = json.loads((project / "certificate.json").read_text())
    assert (alone["spent_before"]["runs"], both["spent_before"]["runs"]) == (0, 1)
    assert both["guarantee"]["missed"]["epsilon"] > alone["guarantee"]["missed"]["epsilon"]
    earlier = run("certify", project / "earlier" / "1" / "model", "--out", project / "1.html")
    assert earlier[0] == 0  # it stands where it was put


def test_a_certificate_of_a_month_is_verified_after_the_next(project, run):
    """ "rates.miss.upper: differs when it is recomputed" of one that nobody had changed: it
    names no labels, and those of its rates had judged once more."""
    file = project / "crtlib.toml"
    file.write_text(PROJECT + CERTIFIED.format(conservative="everything"))
    for month in (TALKS[:40], TALKS[20:60], TALKS[40:]):
        write_messages(project, month)
        run("run", project, "--new-text")
        read_all_turns(project)
        assert run("run", project)[0] == 0
    second = project / "earlier" / "2"
    value = json.loads((second / "certificate.json").read_text())
    assert value["labels"] is None and value["rates"]["miss"]["how"] == "one_per_cluster"
    words = ["certify", second / "model", "--out", second / "certificate.html", "--verify"]
    code, said, _ = run(*words)
    assert code == 0 and said.startswith("verified: holds")
    value["rates"]["miss"]["upper"] = value["rates"]["miss"]["rate"]
    (second / "certificate.json").write_text(json.dumps(value))
    assert run(*words)[0] == 4


def test_a_month_without_labels_begins_anew_as_well(project, run):
    """--new-text was heard by the step of labels alone: the run stopped at "model is a finished
    model", beside a corpus that it had replaced."""
    ingested = PROJECT.partition("[label]")[0]
    trained = '[train]\nmethod = "dpsgd"\nepsilon = 3.0\nepochs = 1\nwidth = 8\n[certify]\n'
    (project / "crtlib.toml").write_text(ingested + trained)
    code, _, error = run("run", project)
    assert (code, error) == (0, "")
    assert run("run", project, "--new-text")[0] == 0 and not (project / "earlier").exists()
    first = json.loads((project / "certificate.json").read_text())
    write_messages(project, TALKS)
    code, _, error = run("run", project)
    assert code == 2 and "corpus is not the text that model has read; use --new-text" in error
    code, said, _ = run("run", project, "--new-text")
    assert code == 0 and "what was made from the earlier text is in earlier/1\n" in said
    second = json.loads((project / "certificate.json").read_text())
    assert (first["spent_before"]["runs"], second["spent_before"]["runs"]) == (0, 1)
    assert json.loads((project / "earlier" / "1" / "certificate.json").read_text()) == first
