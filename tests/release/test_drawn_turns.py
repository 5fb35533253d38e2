"""What becomes of a turn that was drawn to judge: it is judged, counts as failing, or is left out
for who says it and for nothing else."""

import contextlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from confide.commands import training as commands
from confide.labels import drawing, imports, label_tasks, registry
from confide.labels.judged_turns import hash_reading, record_judged_pair
from confide.release import certify, rate_bounds
from confide.release.certifiable_run import read_certifiable_run
from confide.reports.screening_page import screen_into_folder
from confide.screening import corpus_screening, dialogue_batches, judged_policies
from confide.screening.teaching import teach_tagger
from confide.text_registry import Registry, registry_folder
from confide.training import train_on_corpus
from crtlib.screening import rates, regex_policies
from crtlib.screening.policy_digests import policy_digest
from crtlib.screening.policy_names import policy_by_name
from crtlib.screening.taught_text import digest_teaching_points
from crtlib.screening.teaching_digests import _digest_of_teaching
from crtlib.text import data_points, jsonl
from crtlib.text.records import Corpus, Dialogue, Secret, Turn
from tests.trainings import SMALL_RECIPE

VALUE = re.compile(r"blue water|\d{5}")


def family(count=120, answers=("noted",)):
    """Half of the people say one pass word, each with other spaces, and half a number of their
    own."""
    talks = []
    for k in range(count):
        said = f"my number is {10_000 + k} thanks"
        if k % 2 == 0:
            said = "the pass word is blue water" + " " * (1 + k // 2) + "ok"
        found = VALUE.search(said)
        turns = [Turn("USR", said, (Secret("other", *found.span()),))]
        talks.append(Dialogue(f"d{k}", f"u{k}", (*turns, *(Turn("SYS", a) for a in answers))))
    return talks


def write(path, talks):
    jsonl.write_jsonl([replace(d, turns=tuple(Turn(t.speaker, t.text) for t in d.turns))
                       for d in talks], path)  # fmt: skip
    return path


def read(path, home, left="", **how):
    """Labels that were drawn and read by somebody honest, who leaves turns with ``left`` unread."""
    drawing.draw_label_tasks(path, home, forms=["jsonl"], **how)
    lines = []
    for line in (home / "tasks.jsonl").read_text().splitlines():
        task = json.loads(line)
        marks = [{"kind": "other", "start": m.start(), "end": m.end()}
                 for m in VALUE.finditer(task["text"])]  # fmt: skip
        done = not (left and left in task["text"])
        lines.append(json.dumps(task | {"done": done, "secrets": marks if done else []}) + "\n")
    (done_file := home.with_suffix(".jsonl")).write_text("".join(lines))
    imports.import_labels(path, done_file, home, partial=bool(left))
    return home


@pytest.mark.parametrize("left", ["", "blue"])
@pytest.mark.parametrize("unit", ["turn", "dialogue"])
@pytest.mark.parametrize("dedup", ["all", "none"])
def test_each_drawn_turn_has_one_fate(tmp_path, dedup, unit, left):
    """Words that were read before a seal vanished unless their point was repeated to the letter:
    "trace 0 of 119, at most 3.62 %" was printed where 50 % of the secrets were missed."""
    path = write(tmp_path / "c.jsonl", family(answers=()))
    (tmp_path / "ours.toml").write_text("[number]\npattern = '\\d{5}'\n")
    policy = f"regex:{tmp_path}/ours.toml"
    first = read(path, tmp_path / "first", turns=30, seed=1)
    second = read(
        path, tmp_path / "second", left, turns=100, seed=2, sealed=[policy_digest(policy)]
    )
    pair = corpus_screening.ScreeningOptions(policy, "everything", unit, dedup=dedup).pair()
    texts = None if dedup == "none" else dialogue_batches.count_texts(path, unit)
    counter, about = judged_policies.judge_policies(path, second, pair, texts=texts)
    found = counter.rates()
    asked = {t.user for t in label_tasks.read_tasks(first)}
    drawn = [t for t in label_tasks.read_tasks(second) if t.part == "judge"]
    kept = [t for t in drawn if t.user not in asked]
    assert found.left_out_points == len(drawn) - len(kept) > 0
    assert found.left_out_clusters == len(asked) == 30
    assert found.points + about.get("unread", 0) + found.left_out_points == len(drawn)
    missed = sum("blue" in t.text for t in kept)
    assert (found.trace.failures, found.trace.judged_secrets) == (missed, len(kept))
    assert 0.4 < missed / len(kept) < 0.6 < found.trace.upper_bound + 0.1


def test_where_most_had_been_asked_all_judge(tmp_path):
    """Who was asked is left out where others are left; else words that were read before fail."""
    talks = [
        Dialogue(
            f"d{k}",
            f"u{k}",
            tuple(Turn("USR", f"number {10_000 + 9 * k + j} it is") for j in range(4)),
        )
        for k in range(40)
    ]
    path = write(tmp_path / "c.jsonl", talks)
    (tmp_path / "ours.toml").write_text("[number]\npattern = '\\d{5}'\n")
    policy = f"regex:{tmp_path}/ours.toml"
    first = read(path, tmp_path / "first", turns=40, seed=1)
    second = read(path, tmp_path / "second", turns=40, seed=2, sealed=[policy_digest(policy)])
    pair = corpus_screening.ScreeningOptions(policy, "everything").pair()
    counter, _ = judged_policies.judge_policies(path, second, pair, texts=None)
    found = counter.rates()
    twice = {(t.id, t.turn) for t in label_tasks.read_tasks(first)} & {
        (t.id, t.turn) for t in label_tasks.read_tasks(second)
    }
    assert (found.points, found.left_out_points, found.left_out_clusters) == (40, 0, 0)
    assert found.trace.failures == len(twice) > 0


def teach(points, policy="regex:customersim"):
    made = policy_by_name(policy)
    return replace(made, taught_by=(digest_teaching_points(points),), learned=True)


@pytest.mark.parametrize("unit", ["turn", "dialogue"])
def test_words_that_taught_fail_where_somebody_else_says_them(unit):
    """A tagger was taught the pass word that half of the people say: 0 of 118 was printed where
    half of the secrets stood in clear."""
    answers = [[f"noted as case {k}"] for k in range(60)]
    talks = [replace(d, turns=(d.turns[0], Turn("SYS", *answers[k])))
             for k, d in enumerate(family(60))]  # fmt: skip
    every = data_points.make_points(Corpus("", tuple(talks)), unit)
    taught = [p for p in every if int(p.user[1:]) < 20]
    counter = rates.RateCounter(teach(taught), regex_policies.none_policy)
    counter.add(every)
    found = counter.rates()
    assert found.left_out_clusters == 20 and found.points + found.left_out_points == len(every)
    assert found.trace.judged_secrets == 40
    assert {j.cluster for j in counter.outcomes if j.trace} >= {f"u{k}" for k in range(20, 60, 2)}


def test_people_who_taught_are_left_out_whatever_they_said():
    """Only who had taught with a secret was left out: "at most 37.83 %" was printed of a policy
    that passes over 76.9 %, as those with many secrets were left out more often."""
    talks = [
        Dialogue(f"d{k}", f"u{k}", tuple(
            Turn("USR", f"word {k} {j}", (Secret("id", 0, 4),) if k % 2 or j == 0 else ())
            for j in range(3)))
        for k in range(40)
    ]  # fmt: skip
    points = data_points.make_points(Corpus("", tuple(talks)), "turn")
    taught = [p for p in points if p.id.endswith("/2") and int(p.user[1:]) < 30]
    counter = rates.RateCounter(teach(taught), regex_policies.none_policy)
    counter.add(points)
    assert {j.cluster for j in counter.outcomes} == {f"u{k}" for k in range(30, 40)}
    assert counter.rates().left_out_clusters == 30 and counter.rates().labels_json()["apart"] == 30


def test_an_older_tagger_that_kept_only_who_taught_with_a_secret_is_judged_by_all():
    """Of such a one nobody knows who else taught it: who is known counts as failing."""
    talks = family(20, answers=())
    points = data_points.make_points(Corpus("", tuple(talks)), "turn")
    older = digest_teaching_points(points[:6])
    said = frozenset(_digest_of_teaching(f"user\x1f{p.user}") for p in points[:6])
    made = replace(policy_by_name("oracle"), taught_by=(
        replace(older, people=frozenset(), turns=said),))  # fmt: skip
    counter = rates.RateCounter(made, regex_policies.none_policy)
    counter.add(points)
    assert (counter.rates().trace.failures, counter.rates().trace.judged_secrets) == (6, 20)


def test_each_set_counts_from_when_its_page_is_written(tmp_path):
    """Of 260 sets whose pages were opened the kindest was brought in: "at most 18.8 %" was printed
    of 25 %."""
    path = write(tmp_path / "c.jsonl", family(60, answers=()))
    for seed in range(4):
        for again in "ab":  # with one seed and the same options it is one set
            drawing.draw_label_tasks(
                path, tmp_path / f"{again}{seed}", turns=10, seed=seed, forms=["jsonl"]
            )
    kind = read(path, tmp_path / "kind", turns=10, seed=2)
    pair = corpus_screening.ScreeningOptions("regex:customersim", "everything").pair()
    counter, about = judged_policies.judge_policies(path, kind, pair, texts=None)
    assert about["judged"] == 4 and counter.rates(policy_pairs=4).alpha == pytest.approx(0.05 / 8)
    other = write(tmp_path / "other.jsonl", [replace(d, id=f"x{d.id}") for d in family(60, ())])
    drawing.draw_label_tasks(other, tmp_path / "o", turns=10, seed=9, forms=["jsonl"])
    assert judged_policies.judge_policies(path, kind, pair, texts=None)[1]["judged"] == 5


def test_who_was_read_for_another_set_is_none_whom_nobody_read(tmp_path):
    path = write(tmp_path / "c.jsonl", family(60, answers=()))
    home = read(path, tmp_path / "l", turns=20, seed=1)
    pair = corpus_screening.ScreeningOptions("regex:customersim", "everything").pair()
    assert judged_policies.judge_policies(path, home, pair, texts=None)[1]["others"] == 40
    drawing.draw_label_tasks(path, tmp_path / "m", turns=10, seed=2, forms=["jsonl"])
    assert "others" not in judged_policies.judge_policies(path, home, pair, texts=None)[1]


def test_labels_that_were_read_again_bound_nothing(tmp_path):
    """A certificate said "nobody read them again" and at most 2.33 % after a second reader had
    found half of the secrets overlooked."""
    path = write(tmp_path / "c.jsonl", family(120, answers=()))
    home = read(path, tmp_path / "l", turns=100, seed=1)
    how = corpus_screening.ScreeningOptions("regex:customersim", "everything")
    screen_into_folder(path, tmp_path / "s", how, labels=home)
    train_on_corpus.train_for_command(tmp_path / "s", out=tmp_path / "m", **SMALL_RECIPE)
    value = certify.write_certificate(tmp_path / "m", tmp_path / "m.html", secrets_per_person=())
    assert value["verdict"] == "holds"

    tasks = (home / "tasks.jsonl").read_text().splitlines()
    corrected = [json.dumps(json.loads(line) | {"done": True, "secrets": []}) for line in tasks]
    (tmp_path / "again.jsonl").write_text("\n".join(corrected))
    imports.import_labels(path, tmp_path / "again.jsonl", home)
    with pytest.raises(ValueError, match="labels: were read again since"):
        train_on_corpus.train_for_command(tmp_path / "s", out=tmp_path / "n", **SMALL_RECIPE)
    again = certify.write_certificate(tmp_path / "m", tmp_path / "m2.html", secrets_per_person=())
    assert again["verdict"] == "void" and "read again since" in " ".join(again["void_because"])
    run = read_certifiable_run(tmp_path / "m")
    assert run.spent is not None and run.record["labels"]["reading_sha256"]
    line = next(e for e in Registry(registry_folder()).entries() if e.counted)
    few = replace(line, gamma=0.05, counted=line.counted | {"trace": [0, 100]})
    spent = rate_bounds.with_current_bounds(replace(run.spent, entries=(few,)))
    assert spent.entries[0].gamma == 1.0


def test_a_reading_that_is_brought_back_is_the_last(tmp_path):
    """A certificate said "3 of 76" and held by a reading that had been replaced by the one before
    it, whose labels in the folder said 77 of 150; and that one could not be screened with."""
    path = write(tmp_path / "c.jsonl", family(30, answers=()))
    home = read(path, tmp_path / "l", turns=20, seed=1)
    labels, first = label_tasks.read_label_facts(home)["labels"], hash_reading(home)
    tasks = (home / "tasks.jsonl").read_text().splitlines()
    others = [json.dumps(json.loads(line) | {"done": True, "secrets": []}) for line in tasks]
    (tmp_path / "again.jsonl").write_text("\n".join(others))
    imports.import_labels(path, tmp_path / "again.jsonl", home)
    second = hash_reading(home)
    assert registry.were_read_since(labels, first) and not registry.were_read_since(labels, second)
    imports.import_labels(path, home.with_suffix(".jsonl"), home)
    assert hash_reading(home) == first
    assert registry.were_read_since(labels, second) and not registry.were_read_since(labels, first)
    corpus = label_tasks.read_label_facts(home)["corpus"]
    shutil.copytree(home, tmp_path / "copy")
    imports.import_labels(path, tmp_path / "again.jsonl", home)
    with pytest.raises(ValueError, match="labels: were read again since"):  # nor by judging with it
        record_judged_pair(tmp_path / "copy", pi="a", pi_c="b", corpus_sha256=corpus)


def test_a_reading_is_known_before_its_folder_holds_it(tmp_path, monkeypatch):
    """``label import`` was killed between its folder and the registry: by the labels 77 of 150
    left a trace, and a certificate of the reading before said 3 of 76, and held."""
    path = write(tmp_path / "c.jsonl", family(30, answers=()))
    home = read(path, tmp_path / "l", turns=20, seed=1)
    labels, before = label_tasks.read_label_facts(home)["labels"], hash_reading(home)
    tasks = (home / "tasks.jsonl").read_text().splitlines()
    corrected = [json.dumps(json.loads(line) | {"done": True, "secrets": []}) for line in tasks]
    (tmp_path / "again.jsonl").write_text("\n".join(corrected))
    register = imports.register_reading

    def killed(*reading):
        register(*reading)
        raise KeyboardInterrupt

    with monkeypatch.context() as here, pytest.raises(KeyboardInterrupt):
        here.setattr(imports, "register_reading", killed)
        imports.import_labels(path, tmp_path / "again.jsonl", home)
    assert hash_reading(home) == before and registry.were_read_since(labels, before)
    imports.import_labels(path, tmp_path / "again.jsonl", home)
    assert not registry.were_read_since(labels, hash_reading(home))


@pytest.mark.parametrize("conservative", ["everything", "tagger"])
def test_a_promise_is_of_those_who_taught_no_policy(tmp_path, conservative):
    """One secret of a teaching message decided how 189 private points were read; the officer's page
    spoke of all people, and nothing was assumed."""
    path = write(tmp_path / "c.jsonl", family(80, answers=()))
    labels = read(path, tmp_path / "l", turns=40, teach=30, seed=1)
    teach_tagger(path, tmp_path / "T", labels=labels, epochs=30)
    policy, out = f"tagger:{tmp_path}/T", tmp_path / "m"
    pi_c = conservative if conservative == "everything" else f"tagger_conservative:{tmp_path}/T"
    if conservative == "everything":  # through a screened folder, and from the text
        screen_into_folder(path, tmp_path / "s", corpus_screening.ScreeningOptions(policy, pi_c),
                           labels=labels)  # fmt: skip
        train_on_corpus.train_for_command(tmp_path / "s", out=out, **SMALL_RECIPE)
    else:
        train_on_corpus.train_for_command(
            path, out=out, labels=labels, policy=policy, conservative=pi_c, **SMALL_RECIPE
        )
    value = certify.write_certificate(out, tmp_path / "m.html", secrets_per_person=())
    said = next((a for a in value["assumed"] if "taught" in a and "earlier" not in a), "")
    assert said.startswith("for the people of this text who taught a policy, at most 30, masking")
    assert value["policies"]["pi"]["people"] == 30
    assert "assumed" not in " ".join(value["treated_as_public"])
    page = " ".join(re.sub(r"<[^>]+>", "", (tmp_path / "m.html").read_text()).split())
    assert "of somebody who taught no policy (at most 30 people did)" in page
    if value["guarantee"]["kind"] != "dp":
        assert value["labels"]["apart"] == 30
        assert "a person, but none of the 30 from whom a policy learned" in page
    assert f"It is assumed that {said}." in page
    text = " ".join((out / "guarantee.txt").read_text().split())
    assert said in text and "of somebody who taught no policy" in text


def form(path, value, count=40):
    """A form that puts a number at the same place of each message, and a pass word behind it."""
    said = [Turn("USR", f"tel {value(k)} word") for k in range(count)]
    return write(path, [Dialogue(f"d{k}", f"u{k}", (turn,)) for k, turn in enumerate(said)])


def marks_of_page(folder, role="first"):
    """What the page of a folder exports, in which everybody has marked the five digits."""
    told, tasks = label_tasks.read_label_facts(folder), label_tasks.read_tasks(folder)
    mark = {"kind": "other", "start": 4, "end": 9}
    page = {"schema": "crtlib/labels/1", "labels": label_tasks.name_label_page(told, role)}
    return page | {"tasks": [{"task": t.task, "done": True, "secrets": [mark]} for t in tasks]}


def test_an_export_of_other_labels_is_refused(tmp_path):
    """Tasks have the same numbers in every set. January's marks were taken for February's, of whose
    forms the number is a hotline and the pass word is secret: trace 0 of 40, at most 8.81 %."""
    january = form(tmp_path / "january.jsonl", lambda k: 10_000 + k)
    february = form(tmp_path / "february.jsonl", lambda k: f"55555 blue water {k}")
    for text in (january, february):
        drawing.draw_label_tasks(text, tmp_path / text.stem, turns=40, seed=1)
    old, bare = tmp_path / "labels-ann-20260101.json", tmp_path / "bare.json"
    old.write_text(json.dumps(marks_of_page(tmp_path / "january")))
    bare.write_text(json.dumps(marks_of_page(tmp_path / "january")["tasks"]))
    blind = tmp_path / "second.json"
    blind.write_text(json.dumps(marks_of_page(tmp_path / "february", "second")))
    for file, message in ((old, "page of other labels"), (blind, "page of other labels"),
                          (bare, "task 1: has no text that shows which labels")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            imports.import_labels(february, file, tmp_path / "february")
    assert imports.import_labels(january, old, tmp_path / "january")["read"] == 40


def test_a_project_takes_no_export_of_another_month(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    january = form(tmp_path / "january.jsonl", lambda k: 10_000 + k)
    drawing.draw_label_tasks(january, "before", turns=40, seed=1)
    Path("labels-ann-20260101.json").write_text(json.dumps(marks_of_page("before")))
    form(tmp_path / "corpus", lambda k: f"55555 blue water {k}")
    line = ["label", "sample", "corpus", "--out", "labels", "--turns", "40"]
    said = ["nothing"]
    with contextlib.suppress(ValueError):
        said = list(commands._run_label_step(line, certifies=False, new_text=False))
    assert "40 turns wait in labels/page.html" in said[-1]
    Path("labels-ann-20260201.json").write_text(json.dumps(marks_of_page("labels")))
    said = list(commands._run_label_step(line, certifies=False, new_text=False))
    assert any("labels-ann-20260201.json" in words for words in said)
    assert "first" in label_tasks.read_label_facts("labels")


def test_a_project_takes_no_older_export_for_the_newest(tmp_path, monkeypatch):
    """Fault: the last name counted, and a browser calls the second download "… (1).json", which
    sorts before the first; once one was imported, no other was looked at."""
    monkeypatch.chdir(tmp_path)
    text = form(tmp_path / "corpus", lambda k: 10_000 + k)
    line = ["label", "sample", "corpus", "--out", "labels", "--turns", "40"]
    drawing.draw_label_tasks(text, "labels", turns=40, seed=1)
    marked, bare = marks_of_page("labels"), marks_of_page("labels")
    for task in bare["tasks"]:
        task["secrets"] = []
    old, new = Path("labels-ann-20260201.json"), Path("labels-ann-20260201 (1).json")
    old.write_text(json.dumps(bare))
    new.write_text(json.dumps(marked))
    with pytest.raises(ValueError, match=r"\(1\)\.json, .* are exports of one page and differ"):
        list(commands._run_label_step(line))
    new.unlink()
    list(commands._run_label_step(line))
    assert list(commands._run_label_step(line)) == ["labels: up to date"]
    new.write_text(json.dumps(marked))
    with pytest.raises(ValueError, match=r"\(1\)\.json is not the export that was imported"):
        list(commands._run_label_step(line))
    imports.import_labels(text, new, "labels")
    old.unlink()
    assert list(commands._run_label_step(line)) == ["labels: up to date"]
