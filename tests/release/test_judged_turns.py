"""Which labelled turns judge a policy, for whom, and as how many secrets."""

import json
import re
from dataclasses import asdict, replace

import pytest

from confide.labels import drawing, imports, label_tasks, registry
from confide.screening import corpus_screening, judged_policies
from crtlib.screening import (
    policy,
    policy_digests,
    policy_names,
    rates,
    regex_policies,
    taught_text,
)
from crtlib.text import corpora, customersim, data_points, jsonl, records
from crtlib.text.records import Secret, Turn
from tests import trainings
from tests.texts import (
    draw_and_label,
    make_code_messages,
    screen_rates,
    write_coded_messages,
    write_sayings,
    write_simulated_text,
)
from tests.trainings import CRT, make_certificate


def test_labels_do_not_judge_a_list_that_they_taught(tmp_path):
    """Readers' marks became the list: "public at most 6.6 %" was printed of 88.9 %."""
    known = customersim.simulate_corpus(40, 3, "paper")
    path = write_simulated_text(tmp_path / "c.jsonl")
    spans = {(d.id, i): t.secrets for d in known.dialogues for i, t in enumerate(d.turns)}
    values = sorted({d.turns[i].text[s.start : s.end] for d in known.dialogues
                     for i in range(len(d.turns)) for s in spans[d.id, i]})  # fmt: skip
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(v for v in values if len(v) > 3))
    policy = f"list:{listed}"
    kinds = sorted({s.kind for t in known.turns() for s in t.secrets})
    drawn = {"turns": 20, "seed": 1, "kinds": kinds, "forms": ["jsonl"]}
    drawing.draw_label_tasks(
        path, tmp_path / "sealed", sealed=[policy_digests.policy_digest(policy)], **drawn
    )
    drawing.draw_label_tasks(path, tmp_path / "open", **drawn)

    def read(name):
        tasks = [
            {"task": t.task, "done": True, "secrets": [asdict(s) for s in spans[t.id, t.turn]]}
            for t in label_tasks.read_tasks(tmp_path / name)
        ]
        page = {
            "schema": "crtlib/labels/1",
            "labels": label_tasks.read_label_facts(tmp_path / name)["labels"],
        }
        (tmp_path / "done.json").write_text(json.dumps(page | {"annotator": "a", "tasks": tasks}))
        imports.import_labels(path, tmp_path / "done.json", tmp_path / name)

    for name in ("open", "sealed"):
        read(name)
    how = corpus_screening.ScreeningOptions(policy, "cautious")

    def judged(name):
        out = tmp_path / f"{name}-out"
        out.mkdir(exist_ok=True)
        return corpus_screening.screen_corpus(path, out, how, key=None, judges=tmp_path / name)

    with pytest.raises(ValueError, match=r"^labels: list:list\.txt may have been made from them"):
        judged("open")
    assert (tmp_path / "open" / "uses.jsonl").read_text() == ""
    assert judged("sealed").rates.public.judged_secrets > 0
    listed.write_text(listed.read_text() + "\nand what the readers saw")
    with pytest.raises(ValueError, match="may have been made from them"):
        judged("sealed")
    # A7: drawn again from the same seed, and sealed by then, as if nobody had read these turns.
    sealed = [policy_digests.policy_digest(policy)]
    drawing.draw_label_tasks(path, tmp_path / "again", sealed=sealed, **drawn)
    drawing.draw_label_tasks(path, tmp_path / "more", sealed=sealed, **drawn | {"turns": 23})
    for name in ("again", "more"):
        read(name)
    with pytest.raises(ValueError, match="may have been made from them"):
        judged("again")
    late = registry.read_before_seal(tmp_path / "more", sealed).tasks
    places = [
        {(t.id, t.turn) for t in label_tasks.read_tasks(tmp_path / n)} for n in ("more", "open")
    ]
    assert len(late) >= len(places[0] & places[1]) > 0  # a text that stands twice was read twice
    labels = judged("more").summary["labels"]
    assert labels["turns"] == 23 and "apart" not in labels  # 20 had been asked: their words fail
    judged_policies.judge_policies(  # what says itself what taught it, or is ours, needs no seal
        path,
        tmp_path / "open",
        corpus_screening.ScreeningOptions("regex:customersim", "cautious").pair(),
        texts=None,
    )


def test_labels_that_a_corpus_brings_do_not_judge_a_file_that_they_may_have_taught(tmp_path, run):
    """The values of the inline labels were the list: public at most 7 %, in truth 70 %."""
    text, codes = write_coded_messages(tmp_path / "c.jsonl", labelled=8)
    listed = tmp_path / "codes.txt"
    listed.write_text("\n".join(codes[:8]))
    policy = f"list:{listed}"
    trainings.train(text, out=tmp_path / "m", **CRT | {"policy": policy, "conservative": policy})
    made = make_certificate(tmp_path / "m", tmp_path / "m.html")
    assert made["verdict"] == "void" and made["rates"]["public"]["how"] == "unknown"
    words = ["screen", text, "--policy", policy, "--conservative", policy, "--keep-ids"]
    assert run(*words, "--out", tmp_path / "s")[0] == 0
    found = json.loads((tmp_path / "s/private/summary.json").read_text())["rates"]
    assert [found[n]["upper"] for n in ("trace", "public")] == [1.0, 1.0]
    assert found["miss"]["of"] == 8  # what was counted is shown, and bounds nothing
    # A folder that was screened by a file is a file: whatever it was made from may have taught it.
    assert policy_names.is_from_file(f"screened:{tmp_path}/s")


def test_a_turn_that_was_read_under_another_id_was_read(tmp_path):
    """The same draw of a copy with other ids was new, and sealed what the first had taught."""
    one, _ = write_coded_messages(tmp_path / "one.jsonl")
    other, _ = write_coded_messages(tmp_path / "other.jsonl", ids="ticket-")
    sealed = [policy_digests.policy_digest("regex:customersim")]
    drawing.draw_label_tasks(one, tmp_path / "a", turns=8, seed=7, forms=["jsonl"])
    drawing.draw_label_tasks(other, tmp_path / "b", turns=8, seed=7, forms=["jsonl"], sealed=sealed)
    assert registry.read_before_seal(tmp_path / "b", sealed).tasks == {
        t.task for t in label_tasks.read_tasks(tmp_path / "b")
    }


def test_all_whom_nobody_named_are_not_one_person(tmp_path):
    """They drew one message together: "at most 1.85 of 100" was printed of 67."""
    people = [f"u{k}" if k < 50 else "" for k in range(150)]
    texts = [
        f"my phone is {55512}{k:05} , call" if who else f"my phone is fife {k:05} six , call"
        for k, who in enumerate(people)
    ]
    path, known = write_sayings(
        tmp_path / "c.jsonl", people, texts, r"(?<=phone is )\w+( \d+ six)?"
    )
    home = draw_and_label(path, tmp_path / "labels", known, turns=150, seed=1)
    assert {label_tasks.read_label_facts(home)[name] for name in ("users", "judge")} == {150}
    found = screen_rates(path, tmp_path / "s", judges=home)
    truth = screen_rates(path, tmp_path / "t")
    trainings.train(path, out=tmp_path / "m", **CRT | {"labels": home})
    assert make_certificate(tmp_path / "m", tmp_path / "m.html")["corpus"]["users_are"] == "unknown"
    assert "each conversation counts as a person" in (tmp_path / "m.html").read_text()
    assert found.public.upper_bound >= truth.public.rate and truth.public.rate == 2 / 3


def test_a_value_that_stands_twice_in_a_message_is_one_secret(tmp_path):
    """Each place was blacked out by itself: half of the secrets left a trace, in truth all."""
    texts = [f"phone 55512{k:05} , I say 55 512{k:05} !" for k in range(60)]
    path, _ = write_sayings(
        tmp_path / "c.jsonl", [f"u{k}" for k in range(60)], texts, r"55 ?512\d{5}"
    )
    (toml := tmp_path / "p.toml").write_text("[phone]\npattern = '(?<=phone )\\d{10}'\n")
    points = data_points.make_points(corpora.load_corpus(path), "turn")
    found = rates.measure_rates(
        points, policy_names.policy_by_name(f"regex:{toml}"), regex_policies.none_policy
    )
    assert (found.trace.failures, found.trace.judged_secrets) == (
        60,
        60,
    ) and found.trace.labelled_counts == (120, 120)
    both = toml.with_name("q.toml")
    both.write_text("[phone]\npattern = '55 ?512\\d{5}'\n")
    found = rates.measure_rates(
        points, policy_names.policy_by_name(f"regex:{both}"), regex_policies.none_policy
    )
    assert found.trace.failures == 0


def learn_by_heart(points):
    """A policy that knows by heart the values that taught it."""
    known = {p.text[s.start : s.end] for p in points for s in p.secrets}

    def flag(asked):
        for p in asked:
            found = [m.span() for m in re.finditer(r"ZQ\d{6}", p.text) if m[0] in known]
            yield tuple(Secret("id", *ends) for ends in found)

    taught = (taught_text.digest_teaching_points(points),)
    return policy.Policy("tagger", flag, learned=True, taught_by=taught, batched=True)


def test_who_taught_a_policy_does_not_judge_it(tmp_path):
    """Labels of two draws: one taught, the other judged, and people were in both."""
    users = [f"u{k}" for k in range(40)]
    found = learn_by_heart(make_code_messages(0, users))
    judged = rates.measure_rates(
        make_code_messages(1, users, "and again {} please"), found, regex_policies.none_policy
    )
    assert judged.trace.judged_secrets == 0 or judged.trace.upper_bound == 1


def test_a_turn_that_taught_does_not_judge_under_another_name(tmp_path):
    """The tagger was taught by an export without names."""
    found = learn_by_heart(make_code_messages(0, [""] * 40))
    judged = rates.measure_rates(
        make_code_messages(0, [f"u{k}" for k in range(40)]), found, regex_policies.none_policy
    )
    assert judged.trace.judged_secrets == 0 or judged.trace.upper_bound == 1


def test_a_conversation_is_a_cluster_whatever_its_name(tmp_path):
    """Of ids with a slash, as of files in folders, the last part was cut off: 100 conversations
    "2026/K" were one of 101, and "at most 5.4 of 100" was certified where 50 are left in clear."""
    talks, known = [], {}
    for k in range(100):
        for name, text in ((f"2026/{k}", f"my code is ZQ{k:06}"), (f"s{k}", f"my code is {k:08}")):
            spans = (Secret("id", 11, 19),)
            talks.append(records.Dialogue(name, f"u-{name}", (Turn("USR", text, spans),)))
            known[name] = spans
    jsonl.write_jsonl(talks, path := tmp_path / "c.jsonl")
    (tmp_path / "p.toml").write_text("[code]\npattern = '\\d{8}'\n")
    home = draw_and_label(path, tmp_path / "labels", known, turns=150, seed=1, by="dialogue")
    found = regex_policies.pattern_policy("eight digits", re.compile(r"\d{8}"))
    pair = judged_policies.PolicyPair(
        (found, regex_policies.everything_policy), ("cautious", "everything"), "dialogue"
    )
    counter, _ = judged_policies.judge_policies(path, home, pair, texts=None)
    assert counter.rates().trace.judged_secrets == 150


def test_a_turn_that_taught_does_not_judge_with_other_spaces():
    """An export without names, of which the spaces at the ends were cut."""
    found = learn_by_heart(make_code_messages(0, [""] * 40))
    points = make_code_messages(0, [f"u{k}" for k in range(40)])
    points = [
        replace(
            p,
            text=f" {p.text}",
            secrets=tuple(Secret("id", s.start + 1, s.end + 1) for s in p.secrets),
        )
        for p in points
    ]
    judged = rates.measure_rates(points, found, regex_policies.none_policy)
    assert judged.trace.judged_secrets == 0 or judged.trace.upper_bound == 1


def test_labels_of_the_raw_text_teach_nothing_about_its_screened_folder(tmp_path, run):
    """``crtlib tagger SCREENED --labels`` takes the raw text's spans for the redacted one's,
    and prints a table of them: both have one corpus hash."""
    texts = [f"my phone is 55512{k:05} , call me back" for k in range(60)]
    path, known = write_sayings(
        tmp_path / "c.jsonl", [f"u{k}" for k in range(60)], texts, r"(?<=phone is )\d+"
    )
    draw_and_label(path, tmp_path / "labels", known, turns=30, teach=20, seed=1)
    words = ["--policy", "regex:customersim", "--unit", "dialogue", "--keep-ids"]
    assert run("screen", path, *words, "--out", tmp_path / "s")[0] == 0
    code, said, told = run(
        "tagger", tmp_path / "s", "--labels", tmp_path / "labels", "--unit", "dialogue",
        "--epochs", 1, "--out", tmp_path / "t",
    )  # fmt: skip
    assert code == 2 and "were drawn from corpus" in told, said
