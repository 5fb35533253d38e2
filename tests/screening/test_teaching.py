"""Teaching a policy: what is said of it, and what is written."""

import json
from dataclasses import asdict

import pytest

from confide.labels import drawing, imports, judged_turns, label_tasks
from confide.screening import teaching
from crtlib.checks import DamagedError
from crtlib.screening import rates, tagger, word_scorers
from crtlib.screening.rate_values import UNKNOWN_RATE, PolicyRates
from crtlib.screening.taught_text import Shift, measure_shift
from crtlib.screening.taught_text import digest_teaching_points as taught_by
from crtlib.text import customersim, data_points, jsonl
from crtlib.text.records import Dialogue, Point, Turn

CORPUS = customersim.simulate_corpus(40, 0)
POINTS = data_points.make_points(CORPUS, unit="turn")


@pytest.fixture
def file(tmp_path):
    jsonl.write_jsonl(CORPUS, tmp_path / "c.jsonl")
    return tmp_path / "c.jsonl"


def test_a_taught_policy_says_how_unlike_a_text_is_and_its_teachers_do_not_judge(file, tmp_path):
    taught = teaching.teach_tagger(file, tmp_path / "t", epochs=1, judging_share=0.25)
    pi, pi_c = tagger.tagger_policy(taught.tagger), tagger.conservative_tagger_policy(taught.tagger)
    found = rates.measure_rates(POINTS, pi, pi_c)
    assert found.trace.judged_secrets == 10 and found.left_out_points > 0
    (known,) = dict.fromkeys((*pi.taught_by, *pi_c.taught_by))
    other = [Point(str(i), "u", f"Wherefore ART THOU, RoMeO{i}xX?") for i in range(9)]
    alike, unlike = measure_shift(POINTS, known), measure_shift(other, known)
    assert unlike.words > 0.9 and unlike.shapes > 0.2 > alike.words


def test_what_is_said_of_held_out_points_leaves_out_those_of_teachers():
    """Fault: "on 100 held-out points", above a table of none, where all were of people who taught
    it (labels drawn by conversation)."""
    counted = PolicyRates(*[UNKNOWN_RATE] * 3, left_out_points=90)
    summary = {"judged_points": 100, "pi": {"policy": "tagger", "flagged_points": 3}}
    said = teaching.TaughtTagger(None, {"pi": counted}, Shift(0, 0, 1), summary).text()
    assert said.startswith("pi (tagger) on 10 held-out points of people who did not teach it, of")


def test_shift_counts_unseen_words_and_shapes():
    known = taught_by([Point("0", "u", "USR: see Ada at 12", (), ((5, 18),))])
    other = Point("1", "u", "USR: see McKay at 99", (), ((5, 20),))
    found = measure_shift([other], known)
    assert (found.words, found.shapes, found.of) == (1 / 4, 1 / 4, 4)
    assert measure_shift([Point("2", "u", "")], known).of == 0


def test_teaching_says_what_both_operating_points_miss(file, tmp_path):
    taught = teaching.teach_tagger(file, tmp_path / "t", epochs=2, seed=3)
    again = teaching.teach_tagger(file, tmp_path / "t", epochs=2, seed=3)
    assert again is None and (tmp_path / "t" / "tagger.json").stat().st_mode & 0o777 == 0o600
    summary = json.loads((tmp_path / "t" / "summary.json").read_text())
    assert summary["taught_points"] + summary["judged_points"] == len(POINTS)
    for name in ("pi", "pi_c"):
        assert summary[name]["rates"]["trace"]["of"] == round(0.3 * 40)
        assert summary[name]["rates"] == taught.rates[name].to_json()
    again = tagger.load_tagger(tmp_path / "t")
    assert again.taught_by == taught.tagger.taught_by
    assert taught.text().count("one secret a user") == 2
    text = (tmp_path / "t" / "tagger.json").read_text() + (
        tmp_path / "t" / "summary.json"
    ).read_text()
    assert not any(p.text[s.start : s.end] in text for p in POINTS for s in p.secrets)


def test_bad_arguments_are_named(file, tmp_path):
    with pytest.raises(ValueError, match=r"^judging_share=1.0: must be in \(0, 1\)"):
        teaching.teach_tagger(file, tmp_path / "t", judging_share=1.0)
    bare = [Dialogue(d.id, d.user, (Turn("USR", "hi"),)) for d in CORPUS.dialogues]
    jsonl.write_jsonl(bare, file)
    with pytest.raises(ValueError, match="none holds a labelled secret"):
        teaching.teach_tagger(file, tmp_path / "t")


def test_several_sets_of_labels_teach_and_the_first_judges(file, tmp_path):
    """A second set is drawn where the tagger doubts; who judges in the first teaches nothing."""
    path = file
    truth = {f"{d.id}/{i}": t.secrets for d in CORPUS.dialogues for i, t in enumerate(d.turns)}

    def read(name, **how):
        kinds = sorted({s.kind for spans in truth.values() for s in spans})
        drawing.draw_label_tasks(path, tmp_path / name, turns=12, teach=12, kinds=kinds, **how)
        tasks = [
            {
                "task": t.task,
                "done": True,
                "secrets": [asdict(s) for s in truth[f"{t.id}/{t.turn}"]],
            }
            for t in label_tasks.read_tasks(tmp_path / name)
        ]
        page = {
            "schema": "crtlib/labels/1",
            "labels": label_tasks.read_label_facts(tmp_path / name)["labels"],
        }
        done = tmp_path / "done.json"
        done.write_text(json.dumps(page | {"annotator": "a", "tasks": tasks}))
        imports.import_labels(path, done, tmp_path / name)
        return judged_turns.read_labelled_points(path, tmp_path / name, part="teach", unit="turn")

    one = read("one", seed=1)
    first = teaching.teach_tagger(path, tmp_path / "t1", labels=tmp_path / "one", epochs=2, seed=0)
    policy = tagger.tagger_policy(first.tagger)
    two = read("two", seed=2, policy=policy, doubt=first.tagger.doubt)
    both = [tmp_path / "one", tmp_path / "two"]
    uses = (tmp_path / "one" / "uses.jsonl").read_text()
    whole = (rows := tmp_path / "two" / "labels.parquet").read_bytes()
    rows.write_bytes(whole[:-1])
    with pytest.raises(DamagedError):
        teaching.teach_tagger(path, tmp_path / "t2", labels=both, epochs=2, seed=0)
    rows.write_bytes(whole)
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        teaching.teach_tagger(path, tmp_path / "t2", labels=both, backbone=str(tmp_path))
    assert (tmp_path / "one" / "uses.jsonl").read_text() == uses  # it has judged nothing
    taught = teaching.teach_tagger(path, tmp_path / "t2", labels=both, epochs=2, seed=0)
    judges = {
        p.user for p in judged_turns.read_labelled_points(path, both[0], part="judge", unit="turn")
    }
    assert judges & {p.user for p in two}
    kept = [p for p in (*one, *two) if p.user not in judges]
    assert taught.summary["taught_points"] == len(kept) > len(one)
    assert taught.summary["judged_points"] == first.summary["judged_points"]


def test_an_encoder_that_is_installed_is_taken_unless_somebody_says_none(tmp_path, monkeypatch):
    jsonl.write_jsonl(customersim.simulate_corpus(30, 0), tmp_path / "c.jsonl")
    taken = []

    def train(points, *, backbone, **how):
        taken.append(backbone)
        raise RuntimeError

    monkeypatch.setattr(teaching, "train_tagger", train)
    for installed in (None, "here"):
        monkeypatch.setattr(word_scorers.util, "find_spec", lambda name, spec=installed: spec)
        for given in (None, "none", "folder"):
            with pytest.raises(RuntimeError):
                teaching.teach_tagger(tmp_path / "c.jsonl", tmp_path / "t", backbone=given)
    assert taken == [None, None, "folder", "minilm", None, "folder"]
