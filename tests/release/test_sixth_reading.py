"""Certificates that a sixth reader made lie, each of which is true now or refused."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from confide import odometer, odometer_lines, text_registry
from confide.screening import corpus as screening
from confide.training import train_on_corpus
from confide.training.advise import Advice, AdviceRow, advise_on_limits
from crtlib.screening import expression_files, policy, rates, regex_policies
from crtlib.text import corpora, data_points, jsonl, records
from crtlib.text.records import Secret, Turn
from crtlib.training import methods, schedules
from tests import trainings
from tests.release import test_false_certificates as earlier
from tests.release.test_fifth_reading import GPT2, codes, learned
from tests.reports.test_certify import read_by_people

CRT, corpus, certificate = earlier.CRT, earlier.corpus, earlier.certificate


def test_a_conversation_is_a_cluster_whatever_its_name(tmp_path):
    """H. Of ids with a slash, as of files in folders, the last part was cut off: 100 conversations
    "2026/K" were one of 101, and "at most 5.4 of 100" was certified where 50 are left in clear."""
    talks, known = [], {}
    for k in range(100):
        for name, text in ((f"2026/{k}", f"my code is ZQ{k:06}"), (f"s{k}", f"my code is {k:08}")):
            spans = (Secret("id", 11, 19),)
            talks.append(records.Dialogue(name, f"u-{name}", (Turn("USR", text, spans),)))
            known[name] = spans
    jsonl.write_jsonl(talks, path := tmp_path / "c.jsonl")
    (tmp_path / "p.toml").write_text("[code]\npattern = '\\d{8}'\n")
    home = earlier.read(path, tmp_path / "labels", known, turns=150, seed=1, by="dialogue")
    found = regex_policies.pattern_policy("eight digits", re.compile(r"\d{8}"))
    pair = screening.PolicyPair(
        (found, regex_policies.everything_policy), ("cautious", "everything"), "dialogue"
    )
    counter, _ = screening.judge_policies(path, home, pair, texts=None)
    assert counter.rates().trace.of == 150


def test_labels_of_a_corpus_that_are_edited_judge_anew(tmp_path):
    """M. A secret that was found wanting lost its label, another of its turn kept it: judged 1,
    and no word of a choice. The fifth reading's mend is of folders of labels alone."""
    text = corpus(tmp_path / "c.jsonl")
    made = list(jsonl.read_jsonl(text))

    def judged(out, extra):
        turns = [[replace(t, secrets=(*extra(t), *t.secrets)) for t in d.turns] for d in made]
        some = (replace(d, turns=tuple(t)) for d, t in zip(made, turns, strict=True))
        jsonl.write_jsonl(some, text)
        return earlier.screened(text, tmp_path / out, "regex:multiwoz").judged

    def wanting(turn):
        return [Secret("name", 0, 1) for s in turn.secrets[:1] if s.start]

    assert [judged("s1", wanting), judged("s2", lambda _: ()), judged("s3", wanting)] == [1, 2, 2]


def test_a_policy_that_says_it_flags_everything_is_held_to_it():
    """M. Another package's policy with ``total``: "public 0", and what it let pass was learned
    without noise."""
    liar = policy.Policy("company", lambda points: [() for _ in points], total=True)
    points = codes(0, [f"u{k}" for k in range(40)])
    try:
        found = rates.measure_rates(points, regex_policies.none_policy, liar)
    except ValueError:
        return
    assert found.public.upper == 1


def test_what_flags_everything_flags_masks_too():
    """M. With a template the policy "everything" was cut around a mask: three masks where one stood
    for the secret, each secret left a trace, and the rate was 0 by definition."""
    turn = Turn("USR", "I am Ada here", (Secret("name", 5, 8),))
    (point,) = [data_points.join_turns("d/0", "u", [turn], ["<|user|> "])]
    everything = replace(regex_policies.everything_policy, own_words=True)
    (judged,) = rates.RateCounter(everything, everything).add([point])
    assert judged.trace == bool(rates.measure_rates([point], everything, everything).trace.upper)


def test_a_turn_that_taught_does_not_judge_with_other_spaces():
    """L. An export without names, of which the spaces at the ends were cut."""
    found = learned(codes(0, [""] * 40))
    points = codes(0, [f"u{k}" for k in range(40)])
    points = [
        replace(
            p,
            text=f" {p.text}",
            secrets=tuple(Secret("id", s.start + 1, s.end + 1) for s in p.secrets),
        )
        for p in points
    ]
    judged = rates.measure_rates(points, found, regex_policies.none_policy)
    assert judged.trace.of == 0 or judged.trace.upper == 1


def test_what_is_void_says_so_in_all_its_files(tmp_path, monkeypatch):
    """M. guarantee.txt decides by itself what is void: of a method of another package, whose phase
    nobody knows, it promised, for everybody to read, what the certificate does not."""

    class Odd(schedules.PrivatePhase):
        pass

    def phases(c):
        made = schedules.dpsgd_phases(epochs=c.epochs, private=c.private)
        return [Odd(**vars(p)) for p in made]

    method = replace(methods.DPSGD, name="odd", label="odd", phases=phases)
    monkeypatch.setitem(methods.METHODS, "odd", method)
    text = corpus(tmp_path / "c.jsonl")
    made = train_on_corpus.train(
        text, out=tmp_path / "m", method="odd", epochs=1, width=4, epsilon=3.0
    )
    assert certificate(tmp_path / "m", tmp_path / "m.html")["verdict"] == "void"
    assert not made.holds and "void" in (tmp_path / "m" / "guarantee.txt").read_text()


def test_an_error_names_no_person(tmp_path, monkeypatch):
    """M. Where people are the unit a point is called as its person, and messages named the point:
    a slow expression, or spans of another package that do not fit."""
    text = corpus(tmp_path / "c.jsonl", people="Ada Lovelace ")
    bad = policy.Policy("company", lambda points: [(Secret("x", 5, 2),) for _ in points])
    (point, *_) = data_points.make_points(records.Corpus("", tuple(jsonl.read_jsonl(text))), "user")
    with pytest.raises(ValueError) as error:
        bad([point])
    assert "Lovelace" not in str(error.value) and "Lovelace" not in repr(point)
    (tmp_path / "p.toml").write_text("[code]\npattern = '(a+)+b'\n")
    monkeypatch.setattr(expression_files, "MATCH_TIMEOUT_SECONDS", 0.01)
    slow = replace(point, text="a" * 5000 + " - b c !", secrets=(), spoken=())
    with pytest.raises(policy.UnansweredError) as error:
        expression_files.expression_file_policy(str(tmp_path / "p.toml"))([slow])
    assert "Lovelace" not in str(error.value)


def test_advice_rounds_bounds_up():
    """L. ``crtlib advise`` printed bounds to the nearest."""
    rate = {"upper": 0.022449, "count": 0, "of": 1, "rate": 0.0, "how": "one_per_cluster"}
    row = AdviceRow(
        "a",
        "b",
        "turn",
        False,
        3.0,
        1.0,
        0.5,
        0.5,
        {"trace": rate, "public": rate},
        [],
        0.50949,
        None,
    )
    said = Advice((row,), None, "", (), 1, 1, 1).text()
    assert "2.25 %" in said and "51.0" in said


def project_of(folder, **steps):
    """A folder of ``crtlib run`` whose corpus and model are there already."""
    lines = []
    for step, settings in steps.items():
        lines += [f"[{step}]", *(f"{name} = {json.dumps(v)}" for name, v in settings.items())]
    (folder / "crtlib.toml").write_text("\n".join(lines) + "\n")


def test_a_project_whose_answer_is_no_ends_with_4(tmp_path, run):
    """M. ``crtlib run`` ended with 0 where its certificate does not meet the limits, or is void."""
    trainings.train(corpus(tmp_path / "c.jsonl"), out=tmp_path / "model", **CRT)
    project_of(tmp_path, certify={"require": ["public <= 0%"]})
    assert run("run", tmp_path)[0] == 4


def test_a_project_is_not_up_to_date_after_its_policy_was_edited(tmp_path, run):
    """L-M. "train: up to date", of a model that the list of before had screened."""
    made = earlier.customersim.simulate_corpus(40, 3, "paper")
    (tmp_path / "p").mkdir()
    jsonl.write_jsonl(made, tmp_path / "p" / "t.jsonl")
    (tmp_path / "p" / "list.txt").write_text("Ada Lovelace\n")
    project_of(
        tmp_path / "p", ingest={"source": ["t.jsonl"], "yes": True},
        train={"policy": "list:list.txt", "conservative": "everything", "epochs": 1, "width": 4},
    )  # fmt: skip
    code, _, error = run("run", tmp_path / "p")
    assert code == 0, error
    (tmp_path / "p" / "list.txt").write_text("Ada Lovelace\nKurt Goedel\n")
    _, said, _ = run("run", tmp_path / "p")
    assert "train: up to date" not in said


def test_runs_of_a_moved_home_are_known_to_other_texts(tmp_path, monkeypatch):
    """M. January's folder came with its odometer to a new machine, the registry did not: of January
    all runs count, of February those alone that were trained here."""
    january, february = (
        corpus(tmp_path / f"{name}.jsonl", seed, "ada")
        for name, seed in (("january", 3), ("february", 4))
    )
    user = CRT | {"unit": "user"}
    trainings.train(january, out=tmp_path / "old", **user)
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "new machine"))
    runs = []
    for text in (january, february):
        trainings.train(text, out=tmp_path / text.stem, **user)
        value = certificate(tmp_path / text.stem, tmp_path / f"{text.stem}.html")
        runs.append(value["spent_before"]["runs"])
    assert runs == [1, 2]


def test_a_run_that_was_struck_stays_struck_when_its_ledger_is_restored(tmp_path):
    """M. "Nobody ever saw it": the next model did not count it; then a backup of the ledger came
    back, and both certificates hold, though the registry knows that it was struck."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    home = odometer.find_odometer(text, corpora.hash_corpus(text))
    backup = (home / odometer_lines.LEDGER_FILE).read_bytes()
    registry = text_registry.Registry(text_registry.registry_home())
    odometer.strike_run(
        home, odometer.read_entries(home)[0].entry, because="unseen", registry=registry
    )
    assert certificate(tmp_path / "m", tmp_path / "m.html")["verdict"] == "void"
    (home / odometer_lines.LEDGER_FILE).write_bytes(backup)
    assert certificate(tmp_path / "m", tmp_path / "m.html")["verdict"] == "void"


def test_what_is_assumed_of_a_base_is_assumed_of_what_is_made_of_it(tmp_path):
    """M-H. A model from outside, then one of crtlib on other text, then one on this text: "assumed:
    it had not read this text" stood in the second certificate and not in the third."""
    first, second, third = (corpus(tmp_path / f"{n}.jsonl", seed) for n, seed in
                            (("a", 3), ("b", 4), ("c", 5)))  # fmt: skip
    start = GPT2 | {"policy": "regex:customersim"}
    trainings.train(first, out=tmp_path / "made", **start)
    weights = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
               "tokenizer_config.json")  # fmt: skip
    (tmp_path / "outside").mkdir()
    for name in weights:
        (tmp_path / "outside" / name).write_bytes((tmp_path / "made" / name).read_bytes())
    from safetensors.torch import load_file, save_file

    file = tmp_path / "outside" / "model.safetensors"
    save_file({n: t + 1e-6 for n, t in load_file(file).items()}, file, metadata={"format": "pt"})
    assumed = []
    for text, init in ((second, "outside"), (third, "b")):
        named = {"policy": "regex:customersim", "epochs": 1, "init": str(tmp_path / init)}
        train_on_corpus.train(text, out=tmp_path / text.stem, **named)
        assumed.append(certificate(tmp_path / text.stem, tmp_path / f"{text.stem}.html")["assumed"])
    assert assumed[0][0] == "outside had not read this text"
    assert {said for said in assumed[1] if said.endswith("had not read this text")} == {
        assumed[0][0],
        "b had not read this text",
    }


def test_labels_of_the_raw_text_teach_nothing_about_its_screened_folder(tmp_path, run):
    """L. ``crtlib tagger SCREENED --labels`` takes the raw text's spans for the redacted one's,
    and prints a table of them: both have one corpus hash."""
    texts = [f"my phone is 55512{k:05} , call me back" for k in range(60)]
    path, known = earlier.said(
        tmp_path / "c.jsonl", [f"u{k}" for k in range(60)], texts, r"(?<=phone is )\d+"
    )
    earlier.read(path, tmp_path / "labels", known, turns=30, teach=20, seed=1)
    words = ["--policy", "regex:customersim", "--unit", "dialogue", "--keep-ids"]
    assert run("screen", path, *words, "--out", tmp_path / "s")[0] == 0
    code, said, _ = run(
        "tagger", tmp_path / "s", "--labels", tmp_path / "labels", "--unit", "dialogue",
        "--epochs", 1, "--out", tmp_path / "t",
    )  # fmt: skip
    assert code == 2, said


def test_the_command_of_an_advice_runs_where_a_name_has_a_space(tmp_path):
    """L. It was printed without quotes."""
    (tmp_path / "my text").mkdir()
    text, _ = read_by_people(tmp_path / "my text", people=80)
    advice = advise_on_limits(text, tmp_path / "my text" / "labels", ["guess <= 90"], epochs=1,
                    policies=["regex:customersim"], conservative=["everything"])  # fmt: skip
    assert str(text) in shlex.split(advice.commands[0])
