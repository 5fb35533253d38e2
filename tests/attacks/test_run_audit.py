"""The audit of one training: it proves what was memorised, and nothing of what was not."""

import json
import sys

import numpy as np
import pytest

from crtlib import __main__ as cli
from crtlib import outputs
from crtlib.attacks import run_audit
from crtlib.models import folder
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.text import canaries, corpora, customersim, jsonl
from crtlib.text.tokenizer import train_bpe
from crtlib.training import schedules

PLANTED = 200
WEAK = {"sampling_probability": 0.1, "noise_multiplier": 8.0, "steps": 20}  # epsilon 0.4


def trained(home, epochs, learned=None):
    """A model that reads the planted secrets so often, and the record of a run that claims noise
    which it did not have."""
    corpus = home / "talk.jsonl"
    if not corpus.exists():
        jsonl.write_jsonl(customersim.simulate(20, 0, "paper"), corpus)
    values = canaries.make(PLANTED, seed=5)
    texts = [canaries.prefix() + value for value in values]
    bpe = train_bpe(texts, vocab_size=290)
    spec = ModelSpec("lstm", bpe.vocab_size, embedding=32, hidden=128)
    model = build(spec, 0)
    if epochs:
        phases = schedules.sgd(epochs=epochs, batch_size=50, learning_rate=1e-2)
        learned(model, phases, {"public": bpe.encode(texts)}, seed=0)
    run = home / f"run{epochs}"
    folder.save(model, bpe, spec, run)
    record = {
        "key": "0" * 64,
        "randomness": "operating_system", "protects_all": True, "delta": 1e-5,
        "accountant": "pld", "phases": [{"kind": "private"} | WEAK], "model": {"sha256": "a" * 64},
        "corpus": {"sha256": corpora.corpus_hash(corpus)},
        "canaries": {"planted": PLANTED, "copies": 1, "seed": 5, "in_public": []},
    }  # fmt: skip
    (run / run_audit.RECORD).write_text(json.dumps(record))
    return run, corpus


@pytest.fixture(scope="module")
def memorised(tmp_path_factory, learned):
    return trained(tmp_path_factory.mktemp("memorised"), 60, learned)


def test_a_model_that_learned_them_without_noise_is_above_its_proof(
    memorised, tmp_path, monkeypatch, capsys
):
    run, corpus = memorised
    found = run_audit.audit(run, corpus, tmp_path / "audit", seed=0)
    assert found.epsilon_lower > 1 > 2 * found.proved and found.refuted
    written = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert written["right"] == found.right
    assert written["model"] == outputs.sha256(run / "model.safetensors")
    options = ["--corpus", corpus, "--out", tmp_path / "again", "--seed", "0"]
    monkeypatch.setattr(sys, "argv", ["crtlib", "audit", *map(str, [run, *options])])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 4 and "MORE THAN PROVED" in capsys.readouterr().out


def test_a_model_that_never_read_them_shows_next_to_nothing(memorised, tmp_path):
    run, corpus = trained(memorised[0].parent, 0)
    for seed in range(5):
        found = run_audit.audit(run, corpus, tmp_path / f"{seed}", seed=seed)
        assert not found.refuted and found.epsilon_lower < 0.8
        assert found.right < found.refuted_from <= found.guessed
        guesses = f"{found.right} of {found.guessed}"
        blind = f"says nothing: {guesses} are a coin's guesses"  # whatever noise there was
        seen = f"not refuted: {guesses} guesses right"
        assert found.lines()[1].startswith(seen if found.epsilon_lower else blind)
        assert 0.2 < found.power <= 1


def test_without_secret_noise_nothing_is_proved(memorised, tmp_path):
    run, corpus = memorised
    content = json.loads((run / run_audit.RECORD).read_text())
    for change in ({"phases": []}, {"randomness": "seed"}, {"protects_all": False}):
        other = tmp_path / "run"
        other.mkdir(exist_ok=True)
        for path in run.iterdir():
            (other / path.name).write_bytes(path.read_bytes())
        (other / run_audit.RECORD).write_text(json.dumps(content | change))
        found = run_audit.audit(other, corpus, tmp_path / "audit", seed=0, force=True)
        assert found.to_json()["proved"] == "inf" and "says nothing" in found.lines()[1]


def test_a_fault_is_found_no_more_often_than_was_said_and_by_the_best_attacker_as_often():
    """Randomised response is the mechanism that reaches the bound at delta = 0."""
    proved, half, m, rng = 1.0, 2.0, 400, np.random.default_rng(0)
    shows = [run_audit.one_run_lower_bound(m, guesses=m, correct=k) for k in range(m + 1)]
    least = next(k for k, bound in enumerate(shows) if bound > proved)
    said = run_audit.chance(m, guesses=m, correct=least, delta=0, epsilon=half)
    for epsilon, often in ((half, said), (proved, 0.05)):
        right = rng.binomial(m, 1 / (1 + np.exp(-epsilon)), size=4000)
        assert (right >= least).mean() == pytest.approx(often, abs=0.02)
    assert run_audit.chance(m, guesses=m, correct=least, delta=1e-4, epsilon=half) > said


def test_controls_are_new_and_differ_from_each_other():
    values = canaries.make(300, seed=1)
    known = run_audit.pairs(values[:200], seed=0, taken=values)
    controls = [control for _, control in known]
    assert [value for value, _ in known] == list(values[:200])
    assert len(set(controls)) == 200 and not set(controls) & set(values)


def test_what_cannot_be_audited_is_refused(memorised, tmp_path):
    run, corpus = memorised
    other = tmp_path / "other.jsonl"
    jsonl.write_jsonl(customersim.simulate(20, 1, "paper"), other)
    with pytest.raises(ValueError, match="is not the text that"):
        run_audit.audit(run, other, tmp_path / "audit")
    with pytest.raises(ValueError, match=r"was not made by 'crtlib train'"):
        run_audit.audit(tmp_path, corpus, tmp_path / "audit")
    few = tmp_path / "few"
    few.mkdir()
    content = json.loads((run / run_audit.RECORD).read_text())
    for wrong in ({"planted": 199}, {"copies": 20}):
        content["canaries"] |= {"planted": 200, "copies": 1} | wrong
        (few / run_audit.RECORD).write_text(json.dumps(content))
        with pytest.raises(ValueError, match="N at least 200"):
            run_audit.audit(few, corpus, tmp_path / "audit")
    assert not (tmp_path / "audit").exists()
