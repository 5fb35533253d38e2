"""Certificates that a fifth reader made lie, each of which is true now or refused."""

import contextlib
import fnmatch
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from confide import odometer, odometer_lines, spending, text_registry
from confide.commands import training as project
from confide.labels import drawing, imports, label_tasks
from confide.release import certify, file_sources, seal, verify
from confide.reports import leakage, sentences
from confide.training import secret_holders, train_on_corpus
from confide.training.advise import advise_on_limits
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.guarantees import MissRate
from crtlib.checks import MachineError
from crtlib.intervals import clopper_pearson_upper
from crtlib.screening import policy, rates, regex_policies, taught_text
from crtlib.text import corpora, customersim, identity, jsonl, records
from crtlib.text.records import Point, Secret, Turn
from tests import trainings
from tests.release import test_false_certificates as earlier
from tests.reports.test_certify import read_by_people

CRT, corpus, certificate = earlier.CRT, earlier.corpus, earlier.certificate
GPT2 = earlier.TINY | {"method": "sgd", "model": "gpt2"}


def test_what_a_stranger_signed_is_not_signed_again(tmp_path):
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    (tmp_path / "m" / "raw.txt").write_text("my name is Ada Lovelace")
    release = tmp_path / "m" / "release.json"
    content = json.loads(release.read_text())
    content["files"]["raw.txt"] = {
        "sha256": earlier.outputs.hash_file(tmp_path / "m" / "raw.txt"), "sources": [0]
    }  # fmt: skip
    release.write_text(json.dumps(seal.sign_value(content, seal.ensure_signing_key(tmp_path))))
    page = tmp_path / "m" / "certificate.html"
    assert [certificate(tmp_path / "m", page)["verdict"] for _ in range(2)] == ["void", "void"]


def test_bounds_of_earlier_runs_hold_together_with_this_one(tmp_path):
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", **CRT)
    second = CRT | {"policy": "regex:multiwoz", "conservative": "cautious"}
    trainings.train(text, out=tmp_path / "two", **second)
    one, two = (certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("one", "two"))
    assert one["labels"]["judged"] == two["labels"]["judged"] == 2
    both = [c["rates"]["public"]["upper"] for c in (one, two)]
    assert two["spent_before"]["delta2"] >= sum(both) * (1 - 1e-9)


def test_advice_counts_what_earlier_searches_passed_over(tmp_path):
    text, _ = read_by_people(tmp_path, people=80)
    earlier = CRT | {"conservative": "regex:customersim", "labels": tmp_path / "labels"}
    trainings.train(text, out=tmp_path / "one", **earlier)
    limits = ["public <= 1%"]
    how = {"policies": ["regex:customersim"], "conservative": ["everything"], "epochs": 1}
    (row,) = advise_on_limits(text, tmp_path / "labels", limits, **how).rows
    trainings.train(
        text, out=tmp_path / "two", policy=row.policy, conservative=row.conservative,
        labels=tmp_path / "labels", epsilon=row.epsilon, epochs=1, width=4,
    )  # fmt: skip
    made = certify.write_certificate(
        tmp_path / "two", tmp_path / "two.html", copies=(), require=limits
    )
    assert made["limits"] == row.judged


def test_a_share_of_conversations_is_counted_by_conversations(tmp_path):
    """Two people of 47 have 70 of the 120 conversations, and in all of theirs a secret is passed
    over: "a conversation, then one of its messages: at most 14.6 of 100"."""
    talks = []
    for k in range(120):
        user, said = (f"h{k % 2}", f"fife {k:05} six") if k < 70 else (f"u{k}", f"55512{k:05}")
        text = f"my phone is {said} , call"
        spans = (Secret("phone", *re.search(said, text).span()),)
        talks.append(records.Dialogue(f"d{k}", user, (Turn("USR", text, spans),)))
    jsonl.write_jsonl(talks, path := tmp_path / "c.jsonl")
    known = {d.id: d.turns[0].secrets for d in talks}
    home = earlier.read(path, tmp_path / "labels", known, turns=110, seed=1, by="dialogue")
    settings = {"labels": home, "unit": "user", "conservative": "everything"}
    with pytest.raises(ValueError, match="--labels: were drawn by conversation"):
        trainings.train(path, out=tmp_path / "m", **CRT | settings)


def limits_of(row):
    """How the page of a certificate says what is certified of a limit."""
    _, text = sentences.load_sentences()["OL"]
    return " ".join(text.render({"limits": [row]}).split())


def test_a_limit_in_times_of_100_is_not_printed_as_a_share():
    row = {"limit": "value <= 1%", "certified": 0.28, "met": True}  # of 100
    assert "28" not in limits_of(row).replace("0.28", "")


def test_what_is_certified_of_a_limit_is_rounded_up():
    row = {"limit": "trace <= 0.2", "certified": 0.1121884, "met": True}
    said = re.search(r"\((\S+) is certified", limits_of(row))[1]
    assert float(said) >= 0.1121884


def test_a_limit_is_not_ignored_where_a_certificate_is_verified(tmp_path, run):
    trainings.train(corpus(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT)
    words = ["certify", tmp_path / "m", "--out", tmp_path / "m.html"]
    assert run(*words)[0] == 0
    assert run(*words, "--verify", "--require", "public <= 0%")[0] != 0


def test_a_perplexity_that_is_no_number_is_not_the_best_there_is():
    """Training that diverged: "held-out perplexity, below 2" in the certificate and on the card."""
    assert (
        file_sources.declare_interval("held-out perplexity", float("nan"), (2.0, 4.0)).value
        != "below 2"
    )


def test_a_link_in_the_place_of_the_page_excuses_no_file(tmp_path):
    trainings.train(corpus(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT)
    (tmp_path / "m" / "guarantee.txt").write_text("epsilon 0, says Ada Lovelace")
    (tmp_path / "page.html").symlink_to(tmp_path / "m" / "guarantee.txt")
    with pytest.raises(ValueError, match=r"page\.html is a link"):
        certificate(tmp_path / "m", tmp_path / "page.html")  # with --force


def test_the_odometer_beside_the_corpus_counts_wherever_the_run_is_entered(tmp_path, monkeypatch):
    """A colleague's runs, whose registry is another: "No earlier run on this text is known here"
    was printed beside the folder that names them."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", **CRT)
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "mine"))
    with pytest.raises(ValueError, match=r"--odometer: .* this text has one already"):
        trainings.train(text, out=tmp_path / "two", odometer=tmp_path / "far" / "mine", **CRT)
    assert not (tmp_path / "two.work").exists()  # what is refused leaves nothing


@pytest.mark.parametrize("how", ["certify", "verify"])
def test_what_stands_twice_in_a_certificate_is_not_as_it_was_signed(
    tmp_path, run, monkeypatch, how
):
    """Whoever opens the file reads epsilon 0.001; both verifiers read the other one."""
    trainings.train(corpus(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT)
    certificate(tmp_path / "m", tmp_path / "m.html")
    page = tmp_path / "m.json"
    first = '{"guarantee": {"secret": {"epsilon": 0.001, "delta": 1e-9}},'
    page.write_text(first + page.read_text().lstrip()[1:])
    if how == "certify":
        code = run("certify", tmp_path / "m", "--out", tmp_path / "m.html", "--verify")[0]
    else:
        monkeypatch.setattr(sys, "argv", ["verify", str(tmp_path / "m"), str(page)])
        code = verify.main()
    assert code != 0


def test_a_message_more_makes_no_judgement_the_first(tmp_path):
    text, judged = corpus(tmp_path / "c.jsonl"), []
    for k, name in enumerate(("regex:customersim", "regex:multiwoz")):
        judged.append(earlier.screened(text, tmp_path / f"s{k}", name).judged)
        more = {"id": f"x{k}", "user": f"x{k}", "turns": [{"speaker": "USR", "text": "hello"}]}
        text.write_text(text.read_text() + json.dumps(more) + "\n")
    assert judged == [1, 2]


def codes(turn, users, said="my code is {}"):
    """A message of each of these users with his code, which is the secret."""
    code, at = "ZQ{:06}".format, len(said.partition("{")[0])
    return [
        Point(f"d{k}/{turn}", user, said.format(code(k)), (Secret("id", at, at + 8),))
        for k, user in enumerate(users)
    ]


def learned(points):
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
    found = learned(codes(0, users))
    judged = rates.measure_rates(
        codes(1, users, "and again {} please"), found, regex_policies.none_policy
    )
    assert judged.trace.of == 0 or judged.trace.upper == 1


def test_a_turn_that_taught_does_not_judge_under_another_name(tmp_path):
    """The tagger was taught by an export without names."""
    found = learned(codes(0, [""] * 40))
    judged = rates.measure_rates(
        codes(0, [f"u{k}" for k in range(40)]), found, regex_policies.none_policy
    )
    assert judged.trace.of == 0 or judged.trace.upper == 1


@pytest.mark.parametrize("base, most", [("o.jsonl", 60), ("bare.jsonl", 70)])
def test_advice_for_a_base_is_what_the_certificate_says(tmp_path, base, most):
    """Its chat template makes the policies others, so that the bounds were wider: 59.9 was said
    and 61.6 certified. And a base that had learned this text makes the certificate void."""
    text, _ = read_by_people(tmp_path, people=80)
    corpus(tmp_path / "o.jsonl", 9)
    start = GPT2 | {"policy": "regex:customersim"}
    trainings.train(tmp_path / base, out=tmp_path / "base", **start)
    init, limits = str(tmp_path / "base"), [f"guess <= {most}"]
    how = {"policies": ["regex:customersim"], "conservative": ["cautious"]}
    advice = advise_on_limits(text, tmp_path / "labels", limits, epochs=1, init=init, **how)
    row = advice.rows[0]
    trainings.train(
        text, out=tmp_path / "m", policy=row.policy, conservative=row.conservative,
        labels=tmp_path / "labels", epsilon=row.epsilon, epochs=1, init=init,
    )  # fmt: skip
    made = certify.write_certificate(tmp_path / "m", tmp_path / "m.html", copies=(), require=limits)
    assert made["limits"] == row.judged


def readable(folder, word):
    """Files that others may read, and in which the word stands."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.stat().st_mode & 0o004)
    return [p.name for p in files if word in p.read_text(errors="replace")]


def test_the_kind_of_a_flag_leaves_a_screening_only_by_a_known_name(tmp_path, run):
    """A list of customers with a column kind: it stood in summary.json and screening.html (0644).
    F4 of the third reading was mended in the rates alone."""
    text = corpus(tmp_path / "c.jsonl")
    value = next(v for d in jsonl.read_jsonl(text) for t in d.turns for v in t.values())
    (tmp_path / "l.csv").write_text(f"secret,kind\n{value},patient Lovelace\n")
    words = ["--policy", f"list:{tmp_path}/l.csv", "--out", tmp_path / "s"]
    assert run("screen", text, *words)[0] == 0
    assert readable(tmp_path / "s", "Lovelace") == []


def test_the_kind_of_a_label_leaves_a_report_only_by_a_known_name(tmp_path, run):
    text = corpus(tmp_path / "c.jsonl")
    text.write_text(text.read_text().replace('"kind": "phone"', '"kind": "phone of Lovelace"'))
    trainings.train(text, out=tmp_path / "m", **CRT)
    assert run("report", tmp_path / "m", "--corpus", text, "--out", tmp_path / "r")[0] == 0
    assert readable(tmp_path / "r", "Lovelace") == []


def test_an_audit_does_not_believe_an_edited_record(tmp_path, run):
    """Noise of 20 was written into it: "proved 0.0748", where 3 is; audit.json goes into the
    certificate."""
    text = corpus(tmp_path / "c.jsonl", dialogues=60)
    canaries = {"canaries": 200, "audited": True, "copies": 1}
    trainings.train(text, out=tmp_path / "m", **CRT | canaries)
    earlier.edited(
        tmp_path / "m.work" / "record.json", lambda c: c["phases"][-1].update(noise_multiplier=20.0)
    )
    code, said, _ = run("audit", tmp_path / "m", "--corpus", text, "--out", tmp_path / "a")
    assert code != 0 and "proved 0.07" not in said


def test_a_person_of_a_table_of_secrets_has_one_promise(tmp_path):
    """ "Ann@X.org" and "ann@x.org" are one person in every corpus, and two in a plan of users."""
    (tmp_path / "s.csv").write_text("user,secret\nAnn@X.org,Ada Lovelace\nann@x.org,555 1234\n")
    points = [Point("0", "ann@x.org", "I am Ada Lovelace"), Point("1", "ann@x.org", "call 5551234")]
    how = {"by": "user", "prior": 0.001, "posterior": 0.1}
    assert len(secret_holders.find_listed_holders([points], tmp_path / "s.csv", **how).secrets) == 1


def test_a_plan_of_a_screened_folder_is_none_of_its_raw_text(tmp_path, run):
    """The search read the redacted text, where the value stood once, and training all of its 30
    places: "guessed with a chance of at most 0.1" was certified."""
    turn = "my code is ZQ000001 , thank you"
    path = coded_talks(tmp_path / "c.jsonl", [turn] * 29 + ["again ZQ000001 please"])
    (tmp_path / "p.toml").write_text("[code]\npattern = '(?<=code is )ZQ\\d+'\n")
    (tmp_path / "s.csv").write_text("user,secret\nx,ZQ000001\n")
    words = ["--policy", f"regex:{tmp_path}/p.toml", "--unit", "dialogue", "--keep-ids"]
    assert run("screen", path, *words, "--dedup", "none", "--out", tmp_path / "s")[0] == 0
    words = ["--secrets", tmp_path / "s.csv", "--posterior", 0.1, "--steps", 5]
    code = run("protect", tmp_path / "s", *words, "--unit", "dialogue", "--out", tmp_path / "p")[0]
    words = ["--plan", tmp_path / "p", "--epochs", 1, "--width", 4, "--out", tmp_path / "m"]
    assert code != 0 or run("train", path, *words)[0] != 0


def coded_talks(path, texts):
    """A conversation of one message each."""
    talks = [records.Dialogue(f"d{k}", f"u{k}", (Turn("USR", t),)) for k, t in enumerate(texts)]
    jsonl.write_jsonl(talks, path)
    return path


def test_a_report_on_redacted_text_is_no_evidence_of_a_model_of_the_raw_text(tmp_path, run):
    text = corpus(tmp_path / "c.jsonl")
    assert run("screen", text, "--policy", "regex:customersim", "--out", tmp_path / "s")[0] == 0
    trainings.train(text, out=tmp_path / "m", **earlier.TINY | {"method": "dpsgd"})
    assert (
        run("report", tmp_path / "m", "--corpus", tmp_path / "s", "--out", tmp_path / "r")[0] == 0
    )
    words = ["--out", tmp_path / "c.html", "--report", tmp_path / "r"]
    assert run("certify", tmp_path / "m", *words)[0] == 2


def test_what_was_private_is_private_when_it_is_converted(tmp_path, run):
    """A folder of ingest (0700) became JSONL of 0644, of which SECURITY.md says that it was public
    before; what is one's own is read by every command as it is."""
    (tmp_path / "t.csv").write_text("customer,ticket,body\nann,1,I am Ada Lovelace\nbob,2,hello\n")
    assert run("ingest", tmp_path / "t.csv", "--yes", "--out", tmp_path / "corpus")[0] == 0
    code = run("convert", tmp_path / "corpus", "--out", tmp_path / "x.jsonl")[0]
    assert code != 0 or not (tmp_path / "x.jsonl").stat().st_mode & 0o077


def test_a_confidence_is_not_rounded_up():
    """guarantee.txt after three judgements: "99.17 % upper bound", which holds with 99.166 %."""
    said = re.search(r"(\S+) % upper", str(MissRate.measured(0, 20, confidence=1 - 0.05 / 6)))[1]
    assert float(said) <= 100 * (1 - 0.05 / 6)


def test_who_forgets_a_text_is_told_of_the_reports_on_it(tmp_path, run):
    """Two reports of one model, on a text and on the same with a message more: the second one
    needed --force, and after --forget it was the only one."""
    text, more = corpus(tmp_path / "c.jsonl"), tmp_path / "more.jsonl"
    trainings.train(text, out=tmp_path / "m", **CRT)
    row = {"id": "x", "user": "x", "turns": [{"speaker": "USR", "text": "hello"}]}
    more.write_text(text.read_text() + json.dumps(row) + "\n")
    report = ["report", tmp_path / "m", "--corpus"]
    assert run(*report, text, "--out", tmp_path / "r1")[0] == 0
    assert run(*report, more, "--out", tmp_path / "r2")[0] == 2
    assert run("account", "--odometer", f"{text}.odometer", "--forget")[0] == 0
    code, _, error = run(*report, more, "--out", tmp_path / "r2")
    said = code == 0 and "Report 2 of this model" in (tmp_path / "r2" / "report.html").read_text()
    assert code == 2 or said or "forg" in error


def test_what_was_spent_says_what_was_forgotten(tmp_path, run):
    """The sum of February was that of two months, and then of one, without a word."""
    for name, seed in (("january", 3), ("february", 4)):
        text = corpus(tmp_path / f"{name}.jsonl", seed, "ada")
        trainings.train(text, out=tmp_path / name, **CRT | {"unit": "user"})
    account = ["account", "--odometer"]
    both = json.loads(run(*account, f"{tmp_path}/february.jsonl.odometer", "--json")[1])
    assert len(both["runs"]) == 2
    assert run(*account, f"{tmp_path}/january.jsonl.odometer", "--forget")[0] == 0
    _, said, _ = run(*account, f"{tmp_path}/february.jsonl.odometer")
    assert "forg" in said


def test_a_person_is_one_with_a_mark_that_nobody_sees():
    """As spreadsheets and chats leave them: a zero-width space, a direction."""
    assert {
        identity.normalise_unit_name(name) for name in ("7", "7\u200b", "\u200e7", "\ufeff7")
    } == {"7"}


def test_the_name_of_a_speaker_decides_nothing_that_is_shown(tmp_path, run):
    """ "other speakers are S1, S2, ... in their order", says SECURITY.md; they are SHA-256 of the
    name modulo 9, in public text (0644) and in what trains without noise: of two candidates one is
    out with a chance of 8 in 9, and no rate counts it."""
    shown = []
    for name in ("Ada", "Eva"):
        path = coded_talks(tmp_path / f"{name}.jsonl", ["hello there"] * 20)
        path.write_text(path.read_text().replace('"USR"', f'"{name}"'))
        words = ["--policy", "regex:customersim", "--conservative", "regex:customersim"]
        words += ["--out", tmp_path / name]
        assert run("screen", path, *words)[0] == 0
        parts = (tmp_path / name / "public").rglob("*.parquet")
        rows = pd.concat(map(pd.read_parquet, parts))
        shown.append({str(value) for value in rows.get("turns", rows.get("text"))})
    assert "hello there" in min(shown[0]) and shown[0] == shown[1]


def test_labels_that_advice_asks_for_are_charged_as_it_said(tmp_path):
    """ "needs 74 turns": they make a set of their own, whose pairs come on top of those of the
    first, so that every bound is wider than was planned."""
    text, _ = read_by_people(tmp_path, people=80)
    how = {"policies": ["regex:customersim"], "conservative": ["everything"], "epochs": 1}
    first = advise_on_limits(text, tmp_path / "labels", ["trace <= 12.5%"], hours=1, **how)
    (command,) = first.commands
    turns = int(re.search(r"--turns (\d+)", command)[1])
    spans = {
        d.id: [t.secrets for t in d.turns] for d in customersim.simulate_corpus(80, 3).dialogues
    }
    drawing.draw_label_tasks(text, home := tmp_path / "more", turns=turns, seed=2, forms=["jsonl"],
                  kinds=label_tasks.read_label_facts(tmp_path / "labels")["kinds"])  # fmt: skip
    known = {(t.id, t.turn): spans[t.id][t.turn] for t in label_tasks.read_tasks(home)}
    bring(text, home, known)
    trace = advise_on_limits(text, home, ["trace <= 12.5%"], **how).rows[0].rates["trace"]
    planned = clopper_pearson_upper(0, trace["of"], confidence=1 - 0.05 / (4 * first.pairs))
    assert trace["count"] == 0 and trace["upper"] <= planned


def bring(text, home, known):
    """Labels of a draw, as who knows them marks them."""
    tasks = [
        {"task": t.task, "done": True,
         "secrets": [vars_of(s) for s in known[t.id, t.turn]]} for t in label_tasks.read_tasks(home)
    ]  # fmt: skip
    page = {
        "schema": "crtlib/labels/1",
        "labels": label_tasks.read_label_facts(home)["labels"],
        "annotator": "a",
    }
    (done := home.with_suffix(".json")).write_text(json.dumps(page | {"tasks": tasks}))
    imports.import_labels(text, done, home)


def vars_of(secret):
    return {"kind": secret.kind, "start": secret.start, "end": secret.end}


def test_a_certificate_of_a_struck_run_is_not_up_to_date(tmp_path, monkeypatch):
    """crtlib run: "certify: up to date", of one that holds; the run was struck since, or judged by
    more labels."""
    monkeypatch.chdir(tmp_path)
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "model", **CRT)
    assert (
        list(project._run_step("certify", {"certify": {}}, {"ok": True}))[-1]
        != "certify: up to date"
    )
    home = odometer.find_odometer(text, corpora.hash_corpus(text))
    registry = text_registry.Registry(text_registry.registry_home())
    odometer.strike_run(
        home, odometer.read_entries(home)[0].entry, because="unseen", registry=registry
    )
    said = []
    with contextlib.suppress(ValueError):
        said += project._run_step("certify", {"certify": {}}, {"ok": True})
    assert said != ["certify: up to date"]


def test_a_text_that_grew_is_not_called_one_that_the_model_has_not_read(tmp_path, run):
    """ "this model was trained on another text: what it has not read it cannot leak"."""
    text, more = corpus(tmp_path / "c.jsonl"), tmp_path / "more.jsonl"
    trainings.train(text, out=tmp_path / "m", **CRT)
    row = {"id": "x", "user": "x", "turns": [{"speaker": "USR", "text": "hello"}]}
    more.write_text(text.read_text() + json.dumps(row) + "\n")
    _, _, said = run("report", tmp_path / "m", "--corpus", more, "--out", tmp_path / "r")
    assert "what it has not read it cannot leak" not in said


def test_at_most_is_not_less_than_there_are():
    """A redacted report: of one person's fifty telephone numbers "at_most 4" were completed."""
    bins = leakage.BinnedCounts(pd.Series([True] * 50), pd.Series(["ann"] * 50))
    row = bins.row("kind", "phone", pd.Series([True] * 50))
    assert row["at_most"] is None or row["at_most"] >= 50


def test_a_report_on_a_screened_text_knows_that_nobody_is_named(tmp_path, run):
    """The raw text is refused; the screened one had "users 1", the pseudonym of nobody."""
    path = coded_talks(tmp_path / "c.jsonl", [f"hello number {k} there" for k in range(30)])
    path.write_text(re.sub(r'"user": "\w+"', '"user": ""', path.read_text()))
    words = ["--policy", "regex:customersim", "--out", tmp_path / "s"]
    assert run("screen", path, *words)[0] == 0
    trainings.train(tmp_path / "s", out=tmp_path / "m", method="crt", epochs=1, width=4)
    report = ["report", tmp_path / "m", "--out", tmp_path / "r", "--corpus"]
    assert run(*report, path)[0] == 2
    assert run(*report, tmp_path / "s")[0] == 2


def test_a_report_that_could_find_nothing_is_no_evidence(tmp_path, run):
    """ "a report found fewer than 5 passages completed", of passages of 100,000 tokens."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    words = ["report", tmp_path / "m", "--corpus", text, "--min-length", 100000]
    assert run(*words, "--out", tmp_path / "r")[0] == 0
    words = ["certify", tmp_path / "m", "--report", tmp_path / "r", "--out", tmp_path / "m.html"]
    assert run(*words)[0] != 0 or "100" in sentences.select_sentences(
        json.loads((tmp_path / "m.json").read_text())
    )["O13"][0].replace("100 trainings", "")


def test_a_policy_that_changes_while_a_text_is_read_is_refused(tmp_path, monkeypatch):
    """The text is compared at the end, and so is a policy of screen; that of train is not."""
    text, toml = corpus(tmp_path / "c.jsonl"), tmp_path / "p.toml"
    toml.write_text("[any]\npattern = 'Ada'\n")
    honest, policy_name = train_on_corpus._attach_label_rates, f"regex:{toml}"

    def edited(*given):
        toml.write_text("[any]\npattern = '\\w+'\n")
        return honest(*given)

    monkeypatch.setattr(train_on_corpus, "_attach_label_rates", edited)
    settings = CRT | {"policy": policy_name, "conservative": "everything"}
    with pytest.raises(MachineError, match="policy"):
        trainings.train(text, out=tmp_path / "m", **settings)


def test_a_set_that_was_read_and_left_is_a_choice(tmp_path):
    """ "persons drawn at random": by the fourth draw, of another seed, after three were read."""
    texts = [f"my phone is {'55512' if k % 2 else 'fife '}{k:05} , call" for k in range(60)]
    people = [f"u{k}" for k in range(60)]
    path, known = earlier.said(tmp_path / "c.jsonl", people, texts, r"(?<=phone is )[\w ]+\d")
    homes = [earlier.read(path, tmp_path / f"labels{k}", known, turns=20, seed=k) for k in range(4)]
    assert earlier.screened(path, tmp_path / "s", judges=homes[-1]).judged >= len(homes)


def test_a_struck_run_lives_on_in_a_model_of_another_text(tmp_path):
    """ "Nobody ever saw what was made": a model that learned other text started from it, and the
    registry knows."""
    step = SampledGaussian(0.01, 1.0, 100)
    spend = {"unit": "turn", "method": "dpsgd", "relation": "replace", "screening": "5" * 64,
             "gamma": 1.0, "delta2": 0.0, "holds": {}, "events": (step,), "void": ()}  # fmt: skip
    for text, run, more in (("a", "first", {}), ("c", "heir", {"base": "1" * 64})):
        spend |= more
        home, model = tmp_path / text, {"a": "1", "c": "2"}[text] * 64
        line = odometer.add_entry(home, corpus=text * 64, run=run, state="started", **spend)
        odometer.add_later_entry(home, line, state="finished", model=model)
    first = odometer.read_entries(tmp_path / "a")[0].entry
    odometer.strike_run(tmp_path / "a", first, because="nobody saw it")
    before = spending.sum_spending(
        odometer.read_entries(tmp_path / "a"), others=odometer.read_entries(tmp_path / "c")
    )
    assert before.runs == 1


ROOT = Path(project.__file__).parents[2]


@pytest.mark.parametrize("where, names", [
    ("confide/commands/project/gitignore",
     [".screened.shards", ".screened.part", ".report.shards"]),
    (".dockerignore", ["plan/names.parquet", "plan/holders.parquet", ".screened.part/private.txt"]),
])  # fmt: skip
def test_lists_of_what_is_private_name_all_of_it(where, names):
    """ "All else that is made here is private, and .gitignore names it": exact spans of private
    text are in .screened.shards; names.parquet has the secrets in clear."""
    lines = (ROOT / where).read_text().splitlines()
    patterns = [line.removesuffix("/").removeprefix("**/") for line in lines if line[:1] != "#"]
    for name in names:
        parts = [name, *Path(name).parts]
        assert any(fnmatch.fnmatchcase(part, p) for part in parts for p in patterns if p), name


def test_a_conversation_that_counts_as_a_person_is_said_of_what_was_screened(tmp_path, run):
    """F6 of the third reading was mended for raw text alone."""
    made = customersim.simulate_corpus(40, 0).dialogues
    mixed = [replace(d, user=d.id if k % 2 else f"ann{k}") for k, d in enumerate(made)]
    jsonl.write_jsonl(mixed, tmp_path / "c.jsonl")
    words = ["--policy", "regex:customersim", "--out", tmp_path / "s"]
    assert run("screen", tmp_path / "c.jsonl", *words)[0] == 0
    train_on_corpus.train(tmp_path / "s", out=tmp_path / "m", method="crt", epochs=1, width=4)
    value = certificate(tmp_path / "m", tmp_path / "m.html")
    assert "each conversation counts as a person" in sentences.select_sentences(value)["O1"][0]


def test_a_redacted_report_has_no_path_of_this_machine(tmp_path, run):
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **GPT2)
    (tmp_path / "t.j2").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    words = ["report", tmp_path / "m", "--corpus", text, "--template", tmp_path / "t.j2"]
    assert run(*words, "--out", tmp_path / "r")[0] == 0
    assert readable(tmp_path / "r", str(tmp_path)) == []


@pytest.mark.parametrize("void", [(), None])
def test_runs_of_a_ledger_that_was_taken_over_are_known_to_other_texts(tmp_path, void):
    """January had a run of before 0.3, which does not say whether it is void, or a colleague's: its
    certificates add it, or say that it does not count. So do February's, of the same people."""
    january, february = (
        corpus(tmp_path / f"{name}.jsonl", seed, "ada")
        for name, seed in (("january", 3), ("february", 4))
    )
    home, sha = tmp_path / "january.jsonl.odometer", corpora.hash_corpus(january)
    step = SampledGaussian(0.01, 1.0, 100)
    spend = {"unit": "user", "method": "crt", "relation": "replace", "screening": "5" * 64,
             "gamma": 0.1, "delta2": 0.0, "holds": {}, "events": (step,)}  # fmt: skip
    spend["void"] = void
    odometer.add_entry(tmp_path / "old", corpus=sha, run="old", state="started", **spend)
    (line,) = odometer_lines._read_lines(tmp_path / "old" / odometer_lines.LEDGER_FILE)
    home.mkdir()
    (home / odometer_lines.OLD_LEDGER_FILE).write_text(line + "\n")
    user, runs = CRT | {"unit": "user"}, []
    for text in (january, february):
        trainings.train(text, out=tmp_path / text.stem, **user)
        value = certificate(tmp_path / text.stem, tmp_path / f"{text.stem}.html")
        runs.append([value["spent_before"][name] for name in ("runs", "unprotected")])
    assert runs == ([[1, 0], [2, 0]] if void == () else [[0, 1], [1, 1]])
