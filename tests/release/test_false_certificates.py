"""Certificates that once held and were false: each is made again, and must not hold."""

import json

import pytest

from crtlib.experiments import own
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
