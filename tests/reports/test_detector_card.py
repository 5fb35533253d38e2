"""The card of a detector: right numbers, by what a secret is, and nothing of the text."""

import json

import pytest

from confide.labels import drawing, imports, judged_turns, label_tasks
from confide.reports import detector_card, small_groups
from crtlib.screening import rates
from crtlib.screening.policy_names import policy_by_name
from crtlib.screening.rate_values import percent_rounded_up
from crtlib.screening.secret_outcomes import SECRET_TRAITS
from crtlib.text import corpora, customersim, jsonl


@pytest.fixture
def read(tmp_path):
    """A corpus, and labels of it that somebody read: (corpus, labels)."""
    corpus, folder = tmp_path / "c.jsonl", tmp_path / "labels"
    jsonl.write_jsonl(customersim.simulate_corpus(160, 0), corpus)
    known = {d.id: d.turns for d in corpora.read_corpus_at(corpus).dialogues}
    kinds = list(customersim.CUSTOMERSIM_KINDS)
    drawing.draw_label_tasks(
        corpus, folder, turns=120, teach=20, seed=0, kinds=kinds, forms=["jsonl"]
    )
    tasks = [
        {"task": t.task, "text": t.text, "done": True,
         "secrets": [{"kind": s.kind, "start": s.start, "end": s.end}
                     for s in known[t.id][t.turn].secrets]}
        for t in label_tasks.read_tasks(folder)
    ]  # fmt: skip
    (tmp_path / "done.json").write_text(json.dumps(tasks))
    imports.import_labels(corpus, tmp_path / "done.json", folder)
    return corpus, folder


def test_a_card_says_what_rates_say_and_shows_no_text(read, run, tmp_path):
    corpus, folder = read
    words = ["card", corpus, "--policy", "cautious", "--labels", folder]
    code, told, err = run(*words, "--out", tmp_path / "card")
    assert code == 0, err
    points = judged_turns.read_labelled_points(corpus, folder, part="judge", unit="turn")
    pi = policy_by_name("cautious")
    kinds = label_tasks.read_label_facts(folder)["kinds"]
    counter = rates.RateCounter(pi, pi, seed=0, kinds=kinds)
    counter.add(points)
    facts = json.loads((tmp_path / "card" / "card.json").read_text())
    found = counter.rates()
    assert facts["rates"]["miss"] == found.miss.to_json() and found.table() in told
    for trait, groups in facts["by"].items():
        counted = counter.rates_by_trait(trait)
        people = {name: some["trace"].judged_secrets for name, some in counted.items()}
        large = small_groups.leave_out_small_groups(people, people)
        assert set(groups) == set(large) and large, trait
    assert set(facts["by"]) == set(SECRET_TRAITS) and "Latin" in facts["by"]["script"]
    page = (tmp_path / "card" / "card.html").read_text()
    badge = (tmp_path / "card" / "badge.svg").read_text()
    values = {p.text[s.start : s.end] for p in points for s in p.secrets}
    assert values and not any(v in page or v in badge for v in values if len(v) > 4)
    assert f"at most {percent_rounded_up(found.trace.upper_bound)}" in badge
    alone = (
        "One person read them; what that reader overlooked, or marked by mistake, is not allowed"
    )
    assert alone in page and alone in badge and alone in told and facts["labels"]["readers"] == 1


def test_a_card_says_how_many_people_read_whatever_their_roles():
    """Four readers ended in a traceback, and two who shared the turns were one."""
    twice = {"turns": 9, "decided": 4, "dropped": 3}
    four = detector_card.describe_readers({"readers": 4, "read_twice": twice, "replaced": 2})
    assert four.startswith("Four people read them") and "in 4 on which they differed" in four
    assert "in 3 of these a mark" in four and "Another reading of 2 of them" in four
    two = detector_card.describe_readers({"readers": 2})
    assert two.startswith("Two people read them, each turn once; what a reader overlooked")
