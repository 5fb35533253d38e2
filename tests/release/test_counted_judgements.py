"""Every judgement of labels on a text is counted, so that no kind one can be picked."""

import json
import shutil
from dataclasses import replace

from confide.labels import drawing, imports, judged_turns, label_tasks, registry
from confide.release import certify, verify
from confide.screening import corpus_screening, judged_policies, screened_rates
from confide.training import train_on_corpus
from crtlib.screening import policy_digests, policy_names
from crtlib.screening.rate_values import RATES_ALPHA, rate_upper_bound
from crtlib.text import jsonl, records
from crtlib.text.records import Secret, Turn
from tests import trainings
from tests.texts import (
    draw_and_label,
    screen_rates,
    write_coded_messages,
    write_sayings,
    write_simulated_text,
)
from tests.trainings import CRT, make_certificate


def test_every_set_of_labels_of_a_text_counts(tmp_path):
    """The kindest of many small sets: only the pairs that one set had judged were counted."""
    text, _ = write_coded_messages(tmp_path / "c.jsonl", people=60)
    judged = []
    for k in range(3):
        drawing.draw_label_tasks(text, home := tmp_path / str(k), turns=3, forms=["jsonl"])
        told = label_tasks.read_label_facts(home)["corpus"]
        judged.append(judged_turns.record_judged_pair(home, pi="p", pi_c="c", corpus_sha256=told))
    assert judged == [1, 2, 3]


def test_another_reading_is_another_judgement(tmp_path):
    """Of two readers the kinder one was shown, and nothing said that the other had judged."""
    text, _ = write_coded_messages(tmp_path / "c.jsonl")
    drawing.draw_label_tasks(text, home := tmp_path / "labels", turns=6, forms=["jsonl"])
    judged = []
    for annotator, spans in (("ann", [{"kind": "id", "start": 11, "end": 21}]), ("bob", [])):
        read = [
            {"task": t.task, "done": True, "secrets": spans} for t in label_tasks.read_tasks(home)
        ]
        page = {"schema": "crtlib/labels/1", "labels": label_tasks.read_label_facts(home)["labels"]}
        (tmp_path / "read.json").write_text(
            json.dumps(page | {"annotator": annotator, "tasks": read})
        )
        imports.import_labels(text, tmp_path / "read.json", home, annotator=annotator)
        judged += [
            judged_turns.record_judged_pair(home, pi="p", pi_c="c", corpus_sha256="c")
            for _ in range(2)
        ]
    assert judged == [1, 1, 2, 2]


def test_a_reading_that_was_replaced_is_said_and_counts(tmp_path):
    """One reader marked 250 secrets, of which the search left a trace of 122; another 128 in her
    place: "at most 3.37 of 100", and "no second reading of them was imported". Nor was it known
    where the folder had been drawn anew with its seed."""
    text, _ = write_coded_messages(tmp_path / "c.jsonl")
    drawn = {"turns": 6, "seed": 1, "forms": ["jsonl"]}
    home = tmp_path / "labels"

    def bring_in(tasks, spans, home=home):
        facts = label_tasks.read_label_facts(home)
        read = [
            {"task": t.task, "done": t in tasks, "secrets": spans if t in tasks else []}
            for t in label_tasks.read_tasks(home)
        ]
        page = {"schema": "crtlib/labels/1", "labels": facts["labels"], "annotator": "a"}
        (tmp_path / "read.json").write_text(json.dumps(page | {"tasks": read}))
        imports.import_labels(text, tmp_path / "read.json", home, partial=True)
        judged = registry.register_judged_pairs(facts, facts["corpus"])
        return registry.count_replaced_turns(facts["labels"]), judged

    drawing.draw_label_tasks(text, home, **drawn)
    tasks, code = label_tasks.read_tasks(home), [{"kind": "id", "start": 11, "end": 21}]
    assert bring_in(tasks[:3], code) == bring_in(tasks, code) == (0, 0)  # who goes on says no other
    assert bring_in(tasks[1:], code) == (0, 0)  # what is left unread now counts as failing
    shutil.rmtree(home)
    drawing.draw_label_tasks(text, home, **drawn)
    assert bring_in(tasks[:4], []) == (4, 1)
    kinder = judged_turns.record_judged_pair(home, pi="p", pi_c="c", corpus_sha256="c")
    assert kinder == 2  # of two readings the second one judges a pair
    other = tmp_path / "other"  # another set, with five of the same turns
    drawing.draw_label_tasks(text, other, **drawn | {"turns": 5})
    assert bring_in(label_tasks.read_tasks(other)[:3], [], other)[0] == 3
    assert bring_in(tasks[:4], code) == (4, 3)  # back to the first, while the second has judged


def test_a_draw_that_is_not_entered_is_not_written(tmp_path, monkeypatch, run):
    """The registry failed after the folder was in its place: people read what nobody knew of."""
    text, _ = write_coded_messages(tmp_path / "c.jsonl")
    (tmp_path / "full").touch()
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "full" / "x"))
    code, _, error = run("label", "sample", text, "--turns", 8, "--out", tmp_path / "labels")
    assert code == 2 and "Traceback" not in error and not (tmp_path / "labels").exists()


def test_every_pair_that_labels_judge_counts_wherever_they_lie(tmp_path, monkeypatch):
    """A copy of the folder had judged nothing yet. Nor was another setting of the dial, or the
    next version of somebody else's package, another policy."""
    path = write_simulated_text(tmp_path / "c.jsonl")
    drawing.draw_label_tasks(path, tmp_path / "labels", turns=20, seed=1, forms=["jsonl"])
    tasks = [
        {"task": t.task, "done": True, "secrets": []}
        for t in label_tasks.read_tasks(tmp_path / "labels")
    ]
    page = {
        "schema": "crtlib/labels/1",
        "labels": label_tasks.read_label_facts(tmp_path / "labels")["labels"],
    }
    (tmp_path / "done.json").write_text(json.dumps(page | {"annotator": "a", "tasks": tasks}))
    imports.import_labels(path, tmp_path / "done.json", tmp_path / "labels")
    shutil.copytree(tmp_path / "labels", tmp_path / "copy")

    def judged(name, **how):
        asked = corpus_screening.ScreeningOptions("regex:customersim", "cautious", **how)
        made = judged_policies.judge_policies(path, tmp_path / name, asked.pair(), texts=None)
        return made[1]["judged"]

    assert [judged("labels"), judged("copy"), judged("labels")] == [1, 1, 1]
    assert [judged("copy", gamma=0.1), judged("labels", gamma=0.1)] == [2, 2]
    assert [judged("labels", gamma=0.1, seed=5), judged("copy", gamma=0.2)] == [3, 4]
    before = policy_digests.policy_digest("toy")
    code = tmp_path / "toy.py"
    for version in (1, 2):
        code.write_text(f"def make(_):\n    return {version}\n")
        names = {}
        exec(compile(code.read_text(), str(code), "exec"), names)
        monkeypatch.setitem(
            policy_names.REGISTERED_MAKERS,
            "toy",
            policy_names.PolicyMaker("toy", "", names["make"]),
        )
        before, last = policy_digests.policy_digest("toy"), before
        assert before != last and policy_names.is_from_file("toy")


def test_labels_of_the_corpus_count_what_they_judged_and_no_seed_chooses(tmp_path):
    """Of seeds that were tried the kindest drew the secrets that count."""
    said = "My phone number is 55512{:05}.", "my cat is called {}."
    people = [
        records.Dialogue(
            f"d{k}",
            f"u{k}",
            (
                Turn("USR", said[0].format(k), (Secret("phone", 19, 29),)),
                Turn("USR", said[1].format(f"Mia{k:02}"), (Secret("name", 17, 22),)),
            ),
        )
        for k in range(40)
    ]
    path = tmp_path / "c.jsonl"
    jsonl.write_jsonl(people, path)

    def screened(policy, seed):
        (folder := tmp_path / f"{policy[:3]}{seed}").mkdir()
        how = corpus_screening.ScreeningOptions(policy, unit="turn", seed=seed)
        return corpus_screening.screen_corpus(path, folder, how, key=b"k" * 32).rates

    found = [screened("regex:customersim", k) for k in range(3)]
    assert len({r.miss.failures for r in found}) == 1 and {r.policy_pairs for r in found} == {1}
    assert screened("cautious", 0).policy_pairs == 2
    made = trainings.train(path, out=tmp_path / "m", **CRT | {"policy": "everything"})
    assert made.fitted.data.rates.policy_pairs == 3


def test_other_labels_of_a_corpus_are_another_judgement(tmp_path):
    """Who labelled a text anew in its own file was charged once, and could keep the kindest."""
    judged = []
    for n in (20, 25, 25, 30):
        text, _ = write_coded_messages(tmp_path / "c.jsonl", labelled=n, people=60)
        judged.append(screen_rates(text, tmp_path / f"s{len(judged)}").policy_pairs)
    assert judged == [1, 2, 2, 3]


def test_a_policy_that_others_followed_was_chosen_among_all(tmp_path):
    """The first policy that labels judged was charged as the only one, whatever came after it."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    page = tmp_path / "m.html"
    one = make_certificate(tmp_path / "m", page)
    assert one["labels"]["judged"] == 1 and "other time" not in page.read_text()
    screen_rates(text, tmp_path / "s", "regex:multiwoz")
    assert (
        certify.compare_certificate_with_run(tmp_path / "m", page)[0] is None
    )  # it was chosen when it was the only one
    two = make_certificate(tmp_path / "m", page)
    assert two["labels"]["judged"] == 2 and two["id"] != one["id"]
    assert "Labels judged policies 1 other time;" in page.read_text()
    for name in ("trace", "public"):
        assert two["rates"][name]["upper"] > one["rates"][name]["upper"]
    for who in ("secret", "missed"):
        assert two["guarantee"][who]["delta"] >= one["guarantee"][who]["delta"]
    assert two["guarantee"]["secret"]["delta"] > one["guarantee"]["secret"]["delta"]
    assert two["guarantee"]["secret"]["epsilon"] > one["guarantee"]["secret"]["epsilon"]
    assert certify.compare_certificate_with_run(tmp_path / "m", page)[0] is None
    assert verify.find_certificate_fault(tmp_path / "m", two) is None


def test_a_screened_folder_that_others_followed_was_chosen_among_all(tmp_path, run):
    text, folders = write_simulated_text(tmp_path / "c.jsonl"), [tmp_path / "one", tmp_path / "two"]
    for folder, policy in zip(folders, ("regex:customersim", "cautious"), strict=True):
        words = ["--policy", policy, "--conservative", "cautious", "--out", folder]
        assert run("screen", text, *words)[0] == 0
    first, second = map(screened_rates.rates_of_screened_folder, folders)
    assert first.policy_pairs == second.policy_pairs == 2
    assert first.trace.upper_bound == rate_upper_bound(
        first.trace.failures, first.trace.judged_secrets, alpha=RATES_ALPHA / 4
    )
    made = train_on_corpus.train(folders[0], out=tmp_path / "m", method="crt", epochs=1, width=4)
    assert "98.7 % upper bound" in made.promise
    value = make_certificate(tmp_path / "m", tmp_path / "m.html")
    assert value["labels"]["judged"] == 2 and value["verdict"] == "holds"


def test_a_message_more_makes_no_judgement_the_first(tmp_path):
    text, judged = write_simulated_text(tmp_path / "c.jsonl"), []
    for k, name in enumerate(("regex:customersim", "regex:multiwoz")):
        judged.append(screen_rates(text, tmp_path / f"s{k}", name).policy_pairs)
        more = {"id": f"x{k}", "user": f"x{k}", "turns": [{"speaker": "USR", "text": "hello"}]}
        text.write_text(text.read_text() + json.dumps(more) + "\n")
    assert judged == [1, 2]


def test_a_set_that_was_read_and_left_is_a_choice(tmp_path):
    """ "persons drawn at random": by the fourth draw, of another seed, after three were read."""
    texts = [f"my phone is {'55512' if k % 2 else 'fife '}{k:05} , call" for k in range(60)]
    people = [f"u{k}" for k in range(60)]
    path, known = write_sayings(tmp_path / "c.jsonl", people, texts, r"(?<=phone is )[\w ]+\d")
    homes = [
        draw_and_label(path, tmp_path / f"labels{k}", known, turns=20, seed=k) for k in range(4)
    ]
    assert screen_rates(path, tmp_path / "s", judges=homes[-1]).policy_pairs >= len(homes)


def test_labels_of_a_corpus_that_are_edited_judge_anew(tmp_path):
    """A secret that was found wanting lost its label, another of its turn kept it: judged 1,
    and no word of a choice. Folders of labels alone were compared."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    made = list(jsonl.read_jsonl(text))

    def judged(out, extra):
        turns = [[replace(t, secrets=(*extra(t), *t.secrets)) for t in d.turns] for d in made]
        some = (replace(d, turns=tuple(t)) for d, t in zip(made, turns, strict=True))
        jsonl.write_jsonl(some, text)
        return screen_rates(text, tmp_path / out, "regex:multiwoz").policy_pairs

    def wanting(turn):
        return [Secret("name", 0, 1) for s in turn.secrets[:1] if s.start]

    assert [judged("s1", wanting), judged("s2", lambda _: ()), judged("s3", wanting)] == [1, 2, 2]
