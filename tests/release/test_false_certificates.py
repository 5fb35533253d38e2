"""Certificates that once held and were false: each is made again, and must not hold."""

import json
import shutil
import struct
import subprocess
import sys
from dataclasses import replace

import pytest

from crtlib.accounting import odometer
from crtlib.experiments import own
from crtlib.reports import certify
from crtlib.text import customersim, jsonl

WORD = "pheochromocytoma"
TINY = {"unit": "turn", "epochs": 1, "embedding": 4, "hidden": 4, "delta": 1e-4, "epsilon": 3.0}


def neighbours(folder):
    """A corpus with a rare word that one person says in one message, and its masked neighbour."""
    path = folder / "d.jsonl"
    jsonl.write_jsonl(customersim.simulate(40, 0), path)
    whole = path.read_text()
    row = {"id": "x", "user": "x", "turns": [{"speaker": "USR", "text": " ".join([WORD] * 40)}]}
    masked = json.loads(json.dumps(row))
    masked["turns"][0]["text"] = "<MASK>"
    for name, extra in (("d", row), ("prime", masked)):
        (folder / f"{name}.jsonl").write_text(whole + json.dumps(extra) + "\n")
    return path, folder / "prime.jsonl"


@pytest.mark.parametrize("method", ["dpsgd", "user_dpsgd"])
def test_what_reads_raw_text_learns_no_vocabulary_from_it(tmp_path, method):
    """F1: the word became a token of the public tokenizer, and "any one message" was printed."""
    one, other = neighbours(tmp_path)
    for name in ("policy", "conservative"):
        with pytest.raises(ValueError, match=f"--{name}: {method} does not read it"):
            own.train_on(one, method=method, **TINY, **{name: "regex:customersim"})
    for path in (one, other):
        own.train_on(path, out=tmp_path / path.stem, method=method, **TINY)
    words = [(tmp_path / p.stem / "tokenizer.json").read_text() for p in (one, other)]
    assert words[0] == words[1] and WORD not in words[0]


def test_a_plan_learns_no_vocabulary_from_what_its_policy_missed(tmp_path, run):
    """F5b: a name flagged once and missed thirty times was a token of the tokenizer."""
    path, name = tmp_path / "d.jsonl", "Wolframina"
    jsonl.write_jsonl(customersim.simulate(20, 0), path)
    said = [f"my name is {name}", *[" ".join([f"regards , {name}"] * 20)] * 30]
    rows = [
        {"id": f"x{k}", "user": "x", "turns": [{"speaker": "USR", "text": text}]}
        for k, text in enumerate(said)
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "nm.toml").write_text("[name]\npattern = '(?<=my name is )[A-Z][a-z]{1,30}'\n")
    words = ["--from-policy", f"regex:{tmp_path}/nm.toml", "--posterior", 0.1, "--steps", 10]
    code, _, error = run("protect", path, *words, "--out", tmp_path / "plan")
    assert code == 0, error
    assert (
        run("train", path, "--plan", tmp_path / "plan", "--epochs", 1, "--out", tmp_path / "m")[0]
        == 0
    )
    assert name not in (tmp_path / "m" / "tokenizer.json").read_text()


CRT = TINY | {"method": "crt", "policy": "regex:customersim", "hidden": 4}


def certificate(run, page):
    return certify.write(run, page, audience="officer", copies=(), force=True)


def corpus(path, seed=3, people="", dialogues=40):
    """Simulated conversations of people who are called ``people`` and a number, if anything."""
    made = customersim.simulate(dialogues, seed, "paper")
    if people:
        made = replace(made, dialogues=tuple(
            replace(d, id=f"{path.stem}-{k}", user=f"{people}{k % 8}")
            for k, d in enumerate(made.dialogues)
        ))  # fmt: skip
    jsonl.write_jsonl(made, path)
    return path


def test_a_screened_folder_elsewhere_is_of_the_same_text(tmp_path, run):
    """F7: with --out in another folder the earlier runs were forgotten."""
    text = corpus(tmp_path / "c.jsonl")
    own.train_on(text, out=tmp_path / "one", **CRT)
    (tmp_path / "far").mkdir()
    screened = tmp_path / "far" / "screened"
    assert run("screen", text, "--policy", "regex:customersim", "--out", screened)[0] == 0
    settings = {n: v for n, v in CRT.items() if n not in ("policy", "unit")}
    own.train_on(screened, out=tmp_path / "two", **settings)
    assert certificate(tmp_path / "two", tmp_path / "two.html")["spent_before"]["runs"] == 1


def test_what_was_screened_first_and_moved_is_of_the_same_text(tmp_path, run):
    text = corpus(tmp_path / "c.jsonl")
    screened = tmp_path / "screened"
    assert run("screen", text, "--policy", "regex:customersim", "--out", screened)[0] == 0
    settings = {n: v for n, v in CRT.items() if n not in ("policy", "unit")}
    own.train_on(screened, out=tmp_path / "one", **settings)
    with text.open("a") as file:  # and grew
        file.write(corpus(tmp_path / "more.jsonl", 4).read_text())
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(text, tmp_path / "elsewhere" / "c.jsonl")
    own.train_on(moved, out=tmp_path / "two", **CRT)
    assert certificate(tmp_path / "two", tmp_path / "two.html")["spent_before"]["runs"] == 1


def test_two_months_of_the_same_people_compose_and_strangers_do_not(tmp_path):
    """January and February share no message; a budget a month was spent on the same people."""
    for name, seed, people in (("january", 3, "ada"), ("february", 4, "ada"), ("other", 5, "eve")):
        text = corpus(tmp_path / f"{name}.jsonl", seed, people)
        settings = TINY | {"method": "user_dpsgd", "unit": "turn", "epsilon": 2.0}
        own.train_on(text, out=tmp_path / name, **settings)
    made = {n: certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("january", "february")}
    both = made["february"]["guarantee"]["missed"]["epsilon"]
    assert made["january"]["spent_before"]["runs"] == 0
    assert made["february"]["spent_before"]["runs"] == 1
    assert both > 1.2 * made["january"]["guarantee"]["missed"]["epsilon"]
    assert certificate(tmp_path / "other", tmp_path / "o.html")["spent_before"]["runs"] == 0


def test_two_trainings_at_once_have_one_odometer(tmp_path):
    """F0: each found a folder of its own, and each certificate said "earlier 0"."""
    text = corpus(tmp_path / "c.jsonl")
    words = ["--unit", "turn", "--epochs", "1", "--width", "4", "--quiet"]
    command = [sys.executable, "-m", "crtlib", "train", text, *words, "--out"]
    running = [subprocess.Popen([*command, tmp_path / name]) for name in "ab"]
    assert [p.wait(timeout=300) for p in running] == [0, 0]
    (home,) = tmp_path.glob("*.odometer")
    assert len({e.run for e in odometer.read(home)}) == 2
    made = [certificate(tmp_path / n, tmp_path / f"{n}.html") for n in "ab"]
    assert sorted(c["spent_before"]["runs"] for c in made) == [0, 1]


def test_a_model_that_was_saved_again_is_known(tmp_path):
    """F3 and F11: another metadata entry turned "void" into "holds"; its heirs counted as
    protected."""
    text = corpus(tmp_path / "c.jsonl")
    own.train_on(text, out=tmp_path / "m0", method="sgd", model="gpt2", **TINY)
    shutil.copytree(tmp_path / "m0", tmp_path / "copy")
    weights = tmp_path / "copy" / "model.safetensors"
    raw = weights.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] = {"saved": "again"}
    again = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(again)) + again + raw[8 + size :])
    for name, init in (("heir", tmp_path / "m0"), ("copied", tmp_path / "copy")):
        own.train_on(text, out=tmp_path / name, init=str(init), **CRT)
        made = certificate(tmp_path / name, tmp_path / f"{name}.html")
        assert made["verdict"] == "void" and "without protection" in made["void_because"][0]
    own.train_on(text, out=tmp_path / "fresh", **CRT)
    before = certificate(tmp_path / "fresh", tmp_path / "fresh.html")["spent_before"]
    assert (before["runs"], before["unprotected"]) == (0, 3)


def test_a_struck_run_is_certified_no_more(tmp_path, run):
    """F13: two released models, neither counted for the other, and both certificates verified."""
    text = corpus(tmp_path / "c.jsonl")
    own.train_on(text, out=tmp_path / "m", **CRT)
    page = tmp_path / "m.html"
    assert certificate(tmp_path / "m", page)["verdict"] == "holds"
    home = f"{text}.odometer"
    words = ["--strike", odometer.read(home)[-1].entry, "--because", "nobody saw it"]
    assert run("account", "--odometer", home, *words)[0] == 0
    assert run("certify", tmp_path / "m", "--out", page, "--verify")[0] == 4
    made = certificate(tmp_path / "m", page)
    assert made["verdict"] == "void" and "struck" in made["void_because"][0]
