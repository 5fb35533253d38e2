"""Turns that were drawn to judge and that nobody read: they count as secrets on which a policy
fails, so nobody gains by leaving out the hard ones."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.labels import adjudication, drawing, imports, judged_turns, label_tasks, registry
from confide.release import certify, verify
from confide.reports import certificate_pages
from confide.reports import detector_card as screened_folders
from confide.screening import judged_policies
from confide.training import train_on_corpus
from crtlib import outputs
from crtlib.intervals import exchangeable_rate
from crtlib.screening import policy_names
from crtlib.screening.rate_values import rate_upper_bound
from crtlib.text import jsonl
from crtlib.text.records import Dialogue, Secret, Turn
from tests.texts import bring_known_labels
from tests.trainings import SMALL_RECIPE

HARD = "rings at fife five sax"


def people(path, count=120, easy=60, user="u"):
    """A text in which each person says a number, as digits or, where it is hard, in words."""
    talks = []
    for k in range(count):
        value = f"55512{k:05}" if k < easy else HARD
        text = f"please call me, it is order {k} of mine and the phone is {value} now"
        at = text.index(value)
        turn = Turn("USR", text, (Secret("phone", at, at + len(value)),))
        talks.append(Dialogue(f"d{k}", user and f"{user}{k}", (turn,)))
    jsonl.write_jsonl(talks, path)
    return path, {d.id: d.turns[0].secrets for d in talks}


def read(path, home, known, left=lambda task: False, partial=True):
    """Labels of all people, as who knows them marks them, but for the turns that are ``left``."""
    drawing.draw_label_tasks(path, home, turns=len(known), seed=1, forms=["jsonl"])
    return bring_known_labels(path, home, lambda t: known[t.id], left=left, partial=partial)


def hard(task):
    return HARD in task.text


def test_hard_turns_that_were_left_unread_are_in_the_bound(tmp_path, run):
    """A9: half of the turns that were drawn were left out, all that both policies miss. "At most
    2.40 of 100" was printed of 50, on "labels of persons, which we did not draw"."""
    path, known = people(tmp_path / "c.jsonl")
    summary = read(path, tmp_path / "labels", known, hard)
    assert (summary["drawn"], summary["unread"], summary["judged"]) == ("at_random", 60, 60)
    assert "60 of 120 turns to judge were drawn and not read" in judged_turns.format_import_summary(
        summary
    )

    words = ["--policy", "regex:customersim", "--conservative", "regex:customersim"]
    words += ["--labels", tmp_path / "labels"]
    code, out, error = run("screen", path, *words, "--out", tmp_path / "s")
    assert code == 0, error
    assert "60 turns that were drawn were not read" in " ".join((out + error).split())
    assert "60 turns that were drawn were not read" in (tmp_path / "s/screening.html").read_text()
    train_on_corpus.train(tmp_path / "s", out=tmp_path / "m", **SMALL_RECIPE)
    value = certify.write_certificate(tmp_path / "m", tmp_path / "m.html", secrets_per_person=())
    assert value["verdict"] == "holds" and value["labels"]["unread"] == 60
    for name in ("miss", "trace", "public"):
        assert (value["rates"][name]["count"], value["rates"][name]["of"]) == (60, 120)
        assert value["rates"][name]["upper"] > 0.5
    page = " ".join(re.sub(r"<[^>]+>", "", (tmp_path / "m.html").read_text()).split())
    assert "which we did not draw" not in page
    assert "read 60 of 120 messages of as many persons drawn at random; 60 had a secret" in page
    assert "The 60 that were drawn and that nobody read count as secrets on which" in page
    said = (tmp_path / "m" / "guarantee.txt").read_text()
    assert "; in both counts 60 turns that were drawn and not read, as failures; " in said
    assert "60 turns that were drawn and not read are in each count" in page
    assert "decides this certificate" not in page and "decide this certificate" not in page
    assert verify.find_certificate_fault(tmp_path / "m", value) is None
    assert certify.compare_certificate_with_run(tmp_path / "m", tmp_path / "m.html")[0] is None

    card = screened_folders.write_detector_card(path, "regex:customersim", tmp_path / "card",
                                 labels=tmp_path / "labels")  # fmt: skip
    assert card["labels"]["unread"] == 60 and card["rates"]["trace"]["count"] == 60
    assert "60 that were drawn and that nobody read" in (tmp_path / "card/card.html").read_text()


def test_turns_that_were_drawn_before_a_seal_count_though_nobody_read_them(tmp_path, monkeypatch):
    path, known = people(tmp_path / "c.jsonl", 30, 20)
    read(path, tmp_path / "labels", known, hard)
    first = next(t.task for t in label_tasks.read_tasks(tmp_path / "labels") if hard(t))
    early = registry.ReadBeforeSeal(frozenset({first}), frozenset())
    monkeypatch.setattr(registry, "read_before_seal", lambda *_: early)
    policy = policy_names.policy_by_name("regex:customersim")
    counter, about = judged_policies.judge_policies(
        path,
        tmp_path / "labels",
        judged_policies.PolicyPair((policy, policy), ("regex:customersim",) * 2),
        texts=None,
    )
    assert about["unread"] == 10 and counter.rates().trace.judged_secrets == 30


@given(data=st.data())
def test_a_bound_with_unread_turns_is_above_that_of_a_whole_reading(data):
    """Whatever the unread turns hold."""
    of = data.draw(st.integers(0, 40))
    count, unread = data.draw(st.integers(0, of)), data.draw(st.integers(1, 20))
    secret = data.draw(st.integers(0, unread))
    fails = data.draw(st.integers(0, secret))
    whole, ours = (count + fails, of + secret), (count + unread, of + unread)
    if whole[1]:
        assert ours[0] / ours[1] >= whole[0] / whole[1] - 1e-12
        for alpha in (0.025, 1e-4):
            bounds = [rate_upper_bound(*pair, alpha=alpha) for pair in (ours, whole)]
            assert bounds[0] >= bounds[1] or math.isclose(*bounds)
        assert exchangeable_rate(*ours) >= exchangeable_rate(*whole)


@pytest.mark.parametrize("user", ["u", ""])
def test_what_is_left_unread_is_of_every_kind(tmp_path, user):
    path, known = people(tmp_path / "c.jsonl", 30, 20, user)
    read(path, tmp_path / "labels", known, hard)
    policy = policy_names.policy_by_name("regex:customersim")
    pair = judged_policies.PolicyPair((policy, policy), ("regex:customersim",) * 2)
    counter, about = judged_policies.judge_policies(path, tmp_path / "labels", pair, texts=None)
    found = counter.rates(policy_pairs=about["judged"])
    assert {kind: row["trace"].failures for kind, row in found.by_kind.items()} == {"phone": 10}
    assert found.secrets == found.points == 20


def test_nobody_reads_a_second_time_what_was_not_read_whole(tmp_path):
    path, known = people(tmp_path / "c.jsonl", 30, 20)
    home = tmp_path / "labels"
    read(path, home, known, hard)
    said = adjudication.write_adjudication(path, home, tmp_path / "again")
    assert (said["role"], said["turns"], said["reach"]) == ("undecided", 10, [])
    assert "again" not in label_tasks.read_label_facts(home)
    (tmp_path / "two").mkdir()
    read(path, tmp_path / "two/labels", known, partial=False)
    adjudication.write_adjudication(
        path, tmp_path / "two/labels", tmp_path / "two/again", forms=["jsonl"]
    )
    lines = (tmp_path / "two/again/tasks.jsonl").read_text().splitlines()[1:]
    done = [json.dumps(json.loads(line) | {"done": True}) for line in lines]
    (tmp_path / "b.jsonl").write_text("\n".join(done))
    with pytest.raises(ValueError, match="a second reader reads all the turns given"):
        imports.import_labels(path, tmp_path / "b.jsonl", tmp_path / "two/labels", role="second",
                    partial=True)  # fmt: skip


def written(home, **facts):
    """Labels with other facts, as if a version of crtlib had written them so."""
    with outputs.staged_folder(
        home, add=True, command="label import", options={}, inputs={}
    ) as part:
        label_tasks.write_label_facts(part, label_tasks.read_label_facts(home) | facts)


def test_what_0_3_let_pass_is_refused_in_one_line_or_counted(tmp_path):
    """It said "given" of what was not read whole, and took half of a second reading."""
    path, known = people(tmp_path / "c.jsonl", 30, 20)
    home = tmp_path / "labels"
    read(path, home, known, hard)
    written(home, drawn="given")
    policy = policy_names.policy_by_name("regex:customersim")
    pair = judged_policies.PolicyPair((policy, policy), ("regex:customersim",) * 2)
    _, about = judged_policies.judge_policies(path, home, pair, texts=None)
    assert (about["drawn"], about["unread"]) == ("at_random", 10)
    again = {"read": ["judge-00001"], "random": ["judge-00001"]}
    written(home, second="b", again=again, readers={"b": {"read": 1, "secrets": 0}})
    with pytest.raises(ValueError, match="was read twice, but not completely; import everything"):
        judged_policies.judge_policies(path, home, pair, texts=None)


def test_the_sentence_of_one_who_was_left_unread():
    from tests.reports.test_certificate_pages import rate, said

    whole = said()["labels_drawn_at_random"][0]
    words = said(("labels.unread", 2), ("rates.trace", rate(15, 402, 0.06)),
                 ("rates.public", rate(2, 402, 0.02)))["labels_drawn_at_random"][0]  # fmt: skip
    assert "who read 1,310 of 1,312 messages of as many persons drawn at random; 400 had" in words
    assert (
        "13 labels decide this certificate" in words
        and "and 0 of that would be read without noise" in words
    )
    assert "nobody read count" not in whole and certificate_pages.certificate_validator()
