"""The command line: what it makes, and that every mistake is one line, exit code 2, no output."""

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from confide import odometer, text_registry
from crtlib.accounting import confidentiality, privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.models import model_folder
from crtlib.studies.study_run import measure_utility
from crtlib.text import corpora, customersim, jsonl
from crtlib.text.records import Point


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "dialogues.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(60, 0, "paper"), path)
    return path


def test_simulate_writes_one_dialogue_a_line(run, tmp_path):
    file = tmp_path / "sim.jsonl"
    code, _, _ = run("simulate", "--dialogues", 30, "--seed", 1, "--out", file)
    assert code == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 30
    for line in lines:
        assert {"id", "user", "turns"} <= set(line)
        for turn in line["turns"]:
            assert set(turn) == {"speaker", "text", "secrets"}
    assert (
        corpora.read_corpus_at(file).dialogues
        == customersim.simulate_corpus(30, 1, "paper").dialogues
    )


def rows(folder):
    return pq.read_table(folder / "data").to_pylist()


def test_screen_splits_and_reports(run, dialogues, tmp_path):
    options = ["--policy", "regex:customersim", "--conservative", "regex:customersim"]
    code, out, _ = run("screen", dialogues, *options, "--gamma", 0.1, "--out", tmp_path / "s")
    assert code == 0 and "one secret a user, 60 users" in out
    summary = json.loads((tmp_path / "s" / "summary.json").read_text())
    parts = {name: rows(tmp_path / "s" / name) for name in ("public", "private")}
    assert summary["public"] == len(parts["public"]) > 0
    assert summary["private"] == len(parts["private"])
    left_out = summary["points"] - summary["public"] - summary["private"]
    assert summary["copies_left_out"] == left_out > 0
    assert f"duplicates {summary['duplicates']} ({left_out} of public turns left out)" in out
    assert not any("<MASK>" in p["text"] for p in parts["public"])
    assert 0 < summary["missed_secrets"] < summary["redacted_spans"]
    again = run("screen", dialogues, *options, "--gamma", 0.1, "--out", tmp_path / "s")
    assert again[:2] == (0, f"{tmp_path / 's'}: up to date\n")


def test_duplicates_by_bloom_and_by_likeness(run, dialogues, tmp_path):
    found = {}
    for method in ("exact", "bloom", "near"):
        out = tmp_path / method
        assert (
            run("screen", dialogues, "--unit", "turn", "--dedup-by", method, "--out", out)[0] == 0
        )
        found[method] = json.loads((out / "summary.json").read_text())["duplicates"]
    assert found["exact"] == found["bloom"] <= found["near"]  # at one error in a million
    code, _, told = run(
        "screen", dialogues, "--unit", "turn", "--dedup-by", "ai", "--out", tmp_path
    )
    assert code == 2 and "dedup_by='ai': must be one of" in told


def test_everything_leaves_nothing_public(run, dialogues, tmp_path):
    code, _, _ = run("screen", dialogues, "--unit", "dialogue", "--out", tmp_path)
    assert code == 0
    assert rows(tmp_path / "public") == []


def test_train_writes_model_guarantee_and_attack(run, dialogues, tmp_path):
    code, out, _ = run(
        "train", dialogues, "--unit", "turn", "--epochs", 1, "--canaries", 2, "--out",
        tmp_path / "model",
    )  # fmt: skip
    assert code == 0
    said = (tmp_path / "model" / "guarantee.txt").read_text()
    assert "Bayesian confidentiality" in said and "one data point replaced" in said
    assert said.strip() in out
    result = json.loads((tmp_path / "model.work" / "results.json").read_text())
    assert sum(row[0] == "exposure" for row in result["rows"]) == 2
    model, tokenizer = model_folder.load_model(tmp_path / "model")
    assert measure_utility(model, tokenizer, {Point("0", "u", "USR: hello"): 1})["ppl"] > 1
    assert sorted(p.name for p in (tmp_path / "model.work").iterdir()) == [
        "record.json",
        "results.json",
    ]
    assert "transformers` cannot load" in (tmp_path / "model" / "README.md").read_text()
    code, out, err = run("train", dialogues, "--unit", "turn", "--out", tmp_path / "model")
    assert code == 2 and "is a finished model; train into another folder" in err
    refused = (2, "", "crtlib: error: prompt: holds bytes that are not UTF-8\n")
    assert run("generate", tmp_path / "model", "--prompt", "USR: \udcff") == refused
    code, out, _ = run("generate", tmp_path / "model", "--prompt", "USR:", "--max-tokens", 5)
    assert code == 0 and out


@pytest.mark.parametrize(
    ("accountant", "sigma", "amplified"),
    [("pld", 2.24771, 0.36190), ("autodp", 2.42632, 0.37438)],
)
def test_account_gives_the_authors_figure(run, accountant, sigma, amplified):
    numbers = ["--epsilon", 2, "--delta", 1e-5, "--batch-size", 1000, "--points", 10000]
    numbers += ["--neighbouring", "add_or_remove"]  # the paper's accounting
    code, out, _ = run(
        "account", *numbers, "--epochs", 10, "--gamma", 0.1, "--accountant", accountant, "--json"
    )
    told = json.loads(out)
    assert code == 0
    assert told["noise_multiplier"] == pytest.approx(sigma, abs=1e-5)
    assert told["confidentiality_epsilon"] == pytest.approx(amplified, abs=1e-5)
    assert {"epsilon", "delta", "gamma", "neighbouring_relation", "accountant"} <= set(told)


ACCOUNT = ["account", "--batch-size", 10, "--points", 100, "--epochs", 1]
BEFORE = ["account", "--batch-size", 10, "--points", 1000, "--epochs", 1, "--delta", 1e-5]
BEFORE += ["--noise-multiplier", 2, "--gamma", 0.1, "--delta2", 0.01]
BEFORE += ["--secrets-per-person", 1]


def test_account_adds_what_was_spent_before(run, tmp_path):
    """Both ledgers in one; rates of two screenings add up."""
    events = (SampledGaussian(0.02, 1.5, 50),)
    facts = {"corpus": "c" * 64, "state": "finished", "unit": "dialogue", "method": "crt"}
    facts |= {"relation": "replace", "screening": "5" * 64, "gamma": 0.05, "delta2": 0.002}
    facts |= {"void": ()}
    folder = tmp_path / "talk.odometer"
    odometer.add_entry(folder, run="a", events=events, holds={"turn": 7}, **facts)
    odometer.add_entry(folder, run="b", **facts | {"method": "sgd", "events": None, "holds": {}})
    _, out, _ = run(*BEFORE, "--unit", "turn", "--before", folder, "--json")
    told = json.loads(out)
    both, own = told["together"], SampledGaussian(0.01, 2.0, 100)
    exact = privacy_cost.epsilon((own, *events), delta=1e-5, neighbouring_relation="replace")
    assert told["epsilon"] < exact <= both["epsilon"] <= 1.01 * exact
    assert (both["runs"], both["unprotected"]) == (1, 1)
    assert (both["gamma"], both["delta2"]) == pytest.approx((0.15, 0.012))
    bayes = confidentiality.confidentiality_epsilon(
        (own, *events), gamma=both["gamma"], total_delta=1e-5, neighbouring_relation="replace"
    )
    assert bayes <= both["confidentiality_epsilon"] <= 1.01 * bayes
    far = privacy_cost.delta((own, *events), epsilon=0.0, neighbouring_relation="replace")
    assert both["by_copies"][0]["right_guesses"] == pytest.approx(50 + 50 * far)
    said = run(*BEFORE, "--unit", "turn", "--before", folder)[1]
    where = "on this text or text with some of the same people or messages"
    assert f"together with 1 earlier run {where}, and 1 without protection:" in said
    for unit, says in (("point", "unit='point'"), ("user", "how many dialogues one user holds")):
        code, _, error = run(*BEFORE, "--unit", unit, "--before", folder)
        assert code == 2 and says in error


def test_account_knows_the_earlier_runs_of_the_registry(run, tmp_path):
    """A20: --before and --odometer read the one folder alone."""
    facts = {"run": "a", "state": "finished", "unit": "turn", "method": "crt", "holds": {}}
    facts |= {"relation": "replace", "screening": "5" * 64, "gamma": 0.05, "delta2": 0.002}
    facts |= {"void": ()}
    registry = text_registry.Registry(text_registry.registry_folder())
    for name in "cd":
        registry.register(name * 64, [("user", "ada")])
    events = (SampledGaussian(0.02, 1.5, 50),)
    odometer.add_entry(tmp_path / "c", registry=registry, corpus="c" * 64, events=events, **facts)
    odometer.prepare_odometer(tmp_path / "d", "d" * 64)
    _, out, _ = run(*BEFORE, "--unit", "turn", "--before", tmp_path / "d", "--json")
    assert json.loads(out)["together"]["runs"] == 1
    _, out, _ = run("account", "--odometer", tmp_path / "d", "--json")
    assert len(json.loads(out)["runs"]) == 1


BAD = {
    "missing corpus": (["screen", "nowhere.jsonl", "--unit", "turn"], "nowhere.jsonl"),
    "empty corpus": (["screen", "EMPTY", "--unit", "turn"], "empty"),
    "not a dialogue": (["screen", "BROKEN", "--unit", "turn"], "2"),
    "span outside": (["screen", "SPAN", "--unit", "turn"], "must lie inside its text"),
    "gamma": (["screen", "GOOD", "--unit", "turn", "--gamma", 7], "gamma=7.0: must be"),
    "unit": (["screen", "GOOD", "--unit", "word"], "unit='word': must be"),
    "policy": (["screen", "GOOD", "--unit", "turn", "--policy", "x"], "policy='x': must be"),
    "no policy fits": (["screen", "OTHER"], "--policy: none fits this text; choose one (list:"),
    "nor in training": (["train", "OTHER"], "--policy: none fits this text; choose one (list:"),
    "not a number": (["screen", "GOOD", "--unit", "turn", "--gamma", "x"], "--gamma"),
    "model": (["train", "GOOD", "--unit", "turn", "--model", "x"], "--model x: must be 'lstm'"),
    "method": (
        ["train", "GOOD", "--unit", "turn", "--method", "x"],
        "--method x: must be one of",
    ),
    "train policy": (["train", "GOOD", "--unit", "turn", "--policy", "x"], "policy='x': must be"),
    "train canaries": (
        ["train", "GOOD", "--unit", "turn", "--canaries", -1],
        "--canaries -1:",
    ),
    "train short": (["train", "SHORT", "--unit", "turn"], "at least 12 conversations, so that"),
    "train epsilon": (["train", "GOOD", "--unit", "turn", "--epsilon", 0], "--epsilon 0: must"),
    "train delta": (["train", "GOOD", "--unit", "turn", "--delta", 1], "--delta 1: must be"),
    "dialogues": (["simulate", "--dialogues", 0, "--seed", 0], "dialogues=0: must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_writes_nothing(run, dialogues, tmp_path, name):
    good = dialogues.read_text()
    first = json.loads(good.splitlines()[0])
    first["turns"][0]["secrets"] = [{"kind": "name", "start": 0, "end": 10_000}]
    files = {
        "GOOD": good,
        "EMPTY": "",
        "OTHER": good.replace("Hello", "Hallo").replace("Hey", "Hei").replace("Hi", "Ho"),
        "SHORT": good.splitlines()[0] + "\n",
        "BROKEN": good.splitlines()[0] + "\nnot json\n",
        "SPAN": json.dumps(first) + "\n",
    }
    args, message = BAD[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    args = [tmp_path / a if a in files else a for a in args]
    code, out, err = run(*args, "--out", tmp_path / "out")
    assert code == 2
    assert err.startswith("crtlib: error: ") and err.count("\n") == 1 and message in err
    assert out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([*ACCOUNT, "--epsilon", 0, "--delta", 1e-5], "epsilon=0.0: must be"),
        ([*ACCOUNT, "--epsilon", 1, "--delta", 1], "delta=1.0: must be"),
        ([*ACCOUNT, "--epsilon", 1, "--delta", 1e-5, "--gamma", 2], "gamma=2.0: must be"),
        ([*ACCOUNT, "--delta", 1e-5], "exactly one"),
        (["sweep", "figure9"], "name='figure9': must be one of"),
        (["sweep", "crt", "--profile", "huge"], "profile='huge': must be one of"),
        (["sweep", "crt", "--set", "gammas=[7]"], "gammas=[7]: must be a list"),
        (["sweep", "crt", "--store", "OTHER"], "has version '0'"),
        (["nonsense"], "nonsense"),
    ],
)
def test_other_bad_input_is_one_line(run, tmp_path, args, message):
    (tmp_path / "VERSION").write_text("0\n")
    code, out, err = run(*[tmp_path if a == "OTHER" else a for a in args])
    assert (code, out) == (2, "")
    program = "crtbook" if args[0] == "sweep" else "crtlib"
    assert err.startswith(f"{program}: error: ") and err.count("\n") == 1 and message in err


def test_a_full_disk_leaves_nothing_behind(run, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    file = tmp_path / "sim.jsonl"
    code, _, err = run("simulate", "--dialogues", 10, "--seed", 1, "--out", file)
    assert code == 3 and "no space left" in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_one_line(run, dialogues, tmp_path):
    (tmp_path / "file").write_text("")
    for command in (
        ["screen", dialogues, "--unit", "turn"],
        ["train", dialogues, "--unit", "turn"],
    ):
        code, _, err = run(*command, "--out", tmp_path / "file" / "out")
        assert code == 2 and err.startswith("crtlib: error: ") and err.count("\n") == 1


def test_a_variable_of_torchrun_alone_is_no_torchrun(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    code, _, err = run("simulate", "--dialogues", 3, "--seed", 1, "--out", tmp_path / "s.jsonl")
    assert code == 0, err


def test_a_limit_on_the_size_of_files_is_one_line(tmp_path):
    """``ulimit -f``: SQLite reports it in words of its own, and nothing is written."""
    texts = (random.Random(i).randbytes(300).hex() for i in range(6000))
    rows = "".join(f"t{i},u{i},2024-01-01 10:00:00,{x}\n" for i, x in enumerate(texts))
    (tmp_path / "messages.csv").write_text("thread,user,sent,text\n" + rows)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "sys.argv = ['crtlib', 'ingest', 'messages.csv', '--yes', '--out', 'corpus'];"
        "from confide.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["messages.csv"]


def test_a_python_that_drops_docstrings_is_refused_in_one_line():
    command = [sys.executable, "-OO", "-m", "crtlib", "account", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "crtlib: error: python -OO: leaves out the docstrings that declare options; use -O\n"
    )
