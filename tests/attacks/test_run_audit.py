"""The audit of one training: it proves what was memorised, and nothing of what was not."""

import json
import shutil
import sys
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

from confide import __main__ as cli
from confide.release import evidence
from confide.reports import screening_page
from confide.screening.corpus_screening import ScreeningOptions
from confide.screening.screened_rates import stored_rates
from confide.training import study_of_text, train_on_corpus
from crtlib import outputs
from crtlib.attacks import one_run_bound, run_audit
from crtlib.models import model_folder
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.studies import study_data
from crtlib.studies.crt_study import CrtStudy
from crtlib.text import canaries, corpora, customersim, data_points, jsonl
from crtlib.text.tokenizer import train_bpe
from crtlib.training import schedules

PLANTED = 200
WEAK = {"sampling_probability": 0.1, "noise_multiplier": 8.0, "steps": 20}  # epsilon 0.4


def trained(home, epochs, learned=None):
    """A model that reads the planted secrets so often, and the record of a run that claims noise
    which it did not have."""
    corpus = home / "talk.jsonl"
    if not corpus.exists():
        jsonl.write_jsonl(customersim.simulate_corpus(20, 0, "paper"), corpus)
    texts = [f"USR: {value}" for value, _ in canaries.make_canary_pairs(PLANTED, seed=5)]
    others = [
        p.text
        for p in data_points.make_points(customersim.simulate_corpus(20, 1, "paper"), unit="turn")
    ]
    bpe = train_bpe(others, vocab_size=290)  # a vocabulary that has read them would tell
    spec = ModelSpec("lstm", bpe.vocab_size, embedding=32, hidden=128)
    model = build_model(spec, 0)
    if epochs:
        phases = schedules.sgd_phases(epochs=epochs, batch_size=50, learning_rate=1e-2)
        learned(model, phases, {"public": bpe.encode(texts)}, seed=0)
    run = home / f"run{epochs}"
    model_folder.save_model(model, bpe, spec, run)
    record = {
        "key": "0" * 64,
        "randomness": "operating_system", "protects_all": True, "delta": 1e-5,
        "accountant": "pld", "phases": [{"kind": "private"} | WEAK],
        "model": {"sha256": "a" * 64, "base": None}, "searched": {"trials": 1},
        "corpus": {"sha256": corpora.hash_corpus(corpus)},
        "canaries": {"planted": PLANTED, "copies": 1, "seed": 5, "in_public": []},
    }  # fmt: skip
    (run / run_audit.AUDITED_RECORD_FILE).write_text(json.dumps(record))
    return run, corpus


@pytest.fixture(scope="module")
def memorised(tmp_path_factory, learned):
    return trained(tmp_path_factory.mktemp("memorised"), 60, learned)


def test_a_model_that_learned_them_without_noise_is_above_its_proof(
    memorised, tmp_path, monkeypatch, capsys
):
    run, corpus = memorised
    found = run_audit.audit_training(run, corpus, tmp_path / "audit", seed=0)
    assert found.epsilon_lower > 1 > 2 * found.proved and found.refuted
    written = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert written["right"] == found.right
    assert written["model"] == outputs.hash_file(run / "model.safetensors")
    options = ["--corpus", corpus, "--out", tmp_path / "again", "--seed", "0"]
    monkeypatch.setattr(sys, "argv", ["crtlib", "audit", *map(str, [run, *options])])
    monkeypatch.setattr(
        "confide.release.seal.read_signed", lambda path: None
    )  # this record has no key
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 4 and "MORE THAN PROVED" in capsys.readouterr().out


class Entry(NamedTuple):
    """What is entered of an audit, its name and its bound, and what the audit returns."""

    name: str
    bound: float
    right: int
    epsilon_lower: float


def test_no_audit_is_drawn_again(memorised, tmp_path, monkeypatch):
    """Its coins follow from the run, so that nobody draws them until a small bound comes. An audit
    that asks something else is another one. Each is entered twice: before it measures anything, and
    with its bound before its result is written."""
    run, corpus = memorised
    coin_seeds, judge_gaps = [], run_audit.judge_gaps

    def keep_seed(*gaps, seed, **named):
        coin_seeds.append(seed)
        return judge_gaps(*gaps, seed=seed, **named)

    monkeypatch.setattr(run_audit, "judge_gaps", keep_seed)
    audits = []
    for k, options in enumerate(({}, {}, {"seed": 1}, {"guesses": 20}, {"confidence": 0.5})):
        enter = Mock()
        found = run_audit.audit_training(run, corpus, tmp_path / f"{k}", enter=enter, **options)
        assert enter.call_count == 2
        (name, before), (name_of_bound, bound) = (call.args for call in enter.call_args_list)
        assert before is None and name_of_bound == name
        audits.append(Entry(name, bound, found.right, found.epsilon_lower))
    first, again, *others = audits
    assert again == first and coin_seeds[0] == coin_seeds[1] and coin_seeds[2] == 1
    assert len({audit.name for audit in (first, *others)}) == 4
    assert first.bound == first.epsilon_lower  # both at 95 %
    at_half_confidence = others[-1]
    assert at_half_confidence.bound < at_half_confidence.epsilon_lower  # entered at 95 %, too


def test_a_model_that_never_read_them_shows_next_to_nothing(memorised, tmp_path):
    run, corpus = trained(memorised[0].parent, 0)
    for seed in range(5):
        found = run_audit.audit_training(run, corpus, tmp_path / f"{seed}", seed=seed)
        assert not found.refuted and found.epsilon_lower < 0.8
        assert found.right < found.refuted_from <= found.guessed
        guesses = f"{found.right} of {found.guessed}"
        blind = (
            f"says nothing: {guesses} right is what a coin toss gives"  # whatever noise there was
        )
        seen = f"not refuted: {guesses} guesses right"
        assert found.lines()[1].startswith(seen if found.epsilon_lower else blind)
        assert 0.2 < found.strongest_attacker_power <= 1


def test_what_is_proved_counts_all_that_read_the_canaries(memorised, tmp_path, run):
    """All trials of a search count, and a model whose start had read the same canaries is refused.

    Fault: "proved 8" of a model whose start had read the same canaries, where both trainings
    together proved 11.2, and of the best of several trials."""
    content = json.loads((memorised[0] / run_audit.AUDITED_RECORD_FILE).read_text())
    once, thrice = (
        run_audit._proved_epsilon(content | {"searched": {"trials": n}}) for n in (1, 3)
    )
    assert once * 1.5 < thrice < once * 3
    based = content | {"model": {"sha256": "a" * 64, "base": {"name": "A"}}}
    first = run_audit._reads_canaries_first
    assert first(content) and not first(based)  # a record of before does not say it
    for before, is_first in (([], True), ([6], True), ([5, 6], False), (None, False)):
        assert (
            first(based | {"canaries": content["canaries"] | {"read_before": before}}) is is_first
        )
    words = ["--method", "dpsgd", "--epsilon", 8, "--epochs", 1, "--unit", "turn"]
    words += ["--canaries", 200, "--copies", 1]
    talk, out = tmp_path / "c.jsonl", tmp_path / "b"
    jsonl.write_jsonl(customersim.simulate_corpus(12, 0), talk)
    start = tmp_path / "a"
    assert (
        run("train", talk, *words, "--model", "gpt2", "--width", 4, "--layers", 1, "--out", start)[
            0
        ]
        == 0
    )
    assert run("train", talk, *words, "--init", start, "--out", out)[0] == 0
    planted = json.loads(run_audit.find_record(out).read_text())["canaries"]
    assert planted["read_before"] == [planted["seed"]] == [0]
    code, _, error = run("audit", out, "--corpus", talk, "--out", tmp_path / "x")
    assert code == 2 and "may have read the same canaries" in error


def test_an_audit_whose_attacker_saw_nothing_prints_no_power():
    """An audit says nothing where its attacker was right as often as a coin, and where even the
    strongest attacker would hardly notice half of the noise; no field of it is called power.

    Fault: `"power": 1.0`, that of the strongest attacker, stood beside "says nothing: 13 of 26 are
    a coin's guesses", as if this audit would surely have noticed."""
    blind = run_audit.RunAudit(0.0, 0.95, 528, 26, 13, 3.0, None, 1.0)
    for found in (blind, replace(blind, claimed=True, strongest_attacker_power=None)):
        written = found.to_json()
        assert "power" not in written
        assert written["says_nothing"] == "13 of 26 right is what a coin toss gives"
    weak = run_audit.RunAudit(0.2, 0.95, 300, 100, 60, 3.0, 99, 0.1).to_json()
    assert (
        weak["says_nothing"]
        == "a training with half the noise would be refuted at most 10 % of the time"
    )
    seen = run_audit.RunAudit(0.2, 0.95, 300, 100, 60, 3.0, 99, 0.101).to_json()
    assert seen["says_nothing"] is None and seen["strongest_attacker_power"] == 0.101


def test_canaries_of_an_audit_stand_beside_what_was_screened(tmp_path, registry):
    """They are found by pi_c and passed over by pi whatever these are, so a text that is screened
    already takes them as private points; copies that policies have to find are refused."""
    jsonl.write_jsonl(customersim.simulate_corpus(30, 0), tmp_path / "talk.jsonl")
    how = ScreeningOptions("regex:customersim", "regex:customersim")
    screening_page.screen_into_folder(tmp_path / "talk.jsonl", tmp_path / "screened", how)
    named = {"corpus": tmp_path / "screened", "canaries": 5, "copies": 1, "method": "crt"}
    study = study_of_text.build_study(**named, audited=True)
    read, plain = (
        study_data.prepare_data(s.ready(), known=stored_rates(s.corpus), public_words=True)
        for s in (study, replace(study, canaries=0))
    )
    words = {f"USR: {word}" for word, _ in canaries.make_canary_pairs(5, seed=0)}
    private, before = ({p.text for p in d.prepared.private} for d in (read, plain))
    assert private - before == words and read.rates == plain.rates
    assert {p.text for p in read.prepared.public} == {p.text for p in plain.prepared.public}
    with pytest.raises(ValueError, match=r"canaries=5: must be those of an audit \(auto, or"):
        study_of_text.build_study(**named | {"copies": 20})


def test_a_model_of_a_screened_text_is_audited_and_certified(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl.write_jsonl(customersim.simulate_corpus(60, 0), tmp_path / "talk.jsonl")
    plan = ["--policy", "regex:customersim", "--gamma", 0.05, "--conservative", "cautious"]
    sizes = ["--width", 4, "--epochs", 1, "--canaries", 200, "--copies", 1]
    for words in (
        ["screen", "talk.jsonl", *plan, "--out", "screened"],
        ["train", "screened", *sizes, "--epsilon", 3, "--out", "model"],
        ["audit", "model", "--corpus", "screened", "--out", "audit"],
        ["certify", "model", "--audit", "audit/audit.json", "--out", "c.html"],
    ):
        assert run(*words)[0] == 0, words
    made = json.loads((tmp_path / "c.json").read_text())
    assert made["canaries"] == {"planted": 200, "copies": 1} and made["verdict"] == "holds"
    audited = made["evidence"]["audit"]
    assert audited["canaries"] == 200 and audited["lower"] < audited["epsilon"] == 3.0


def test_without_secret_noise_nothing_is_proved(memorised, tmp_path):
    run, corpus = memorised
    content = json.loads((run / run_audit.AUDITED_RECORD_FILE).read_text())
    for change in ({"phases": []}, {"randomness": "seed"}, {"protects_all": False}):
        other = tmp_path / "run"
        other.mkdir(exist_ok=True)
        for path in run.iterdir():
            (other / path.name).write_bytes(path.read_bytes())
        (other / run_audit.AUDITED_RECORD_FILE).write_text(json.dumps(content | change))
        found = run_audit.audit_training(other, corpus, tmp_path / "audit", seed=0, force=True)
        assert found.to_json()["proved"] == "inf" and "says nothing" in found.lines()[1]


def test_a_fault_is_found_no_more_often_than_was_said_and_by_the_best_attacker_as_often():
    """Randomised response is the mechanism that reaches the bound at delta = 0."""
    proved, half, m, rng = 1.0, 2.0, 400, np.random.default_rng(0)
    shows = [one_run_bound.one_run_lower_bound(m, guesses=m, correct=k) for k in range(m + 1)]
    least = next(k for k, bound in enumerate(shows) if bound > proved)
    said = one_run_bound.bound_guess_chance(m, guesses=m, correct=least, delta=0, epsilon=half)
    for epsilon, often in ((half, said), (proved, 0.05)):
        right = rng.binomial(m, 1 / (1 + np.exp(-epsilon)), size=4000)
        assert (right >= least).mean() == pytest.approx(often, abs=0.02)
    assert (
        one_run_bound.bound_guess_chance(m, guesses=m, correct=least, delta=1e-4, epsilon=half)
        > said
    )


def test_canaries_and_controls_all_differ_and_have_one_law():
    known = canaries.make_canary_pairs(300, seed=1)
    words = [word for pair in known for word in pair]
    assert len(set(words)) == 600 and {len(word) for word in words} == {
        canaries.AUDIT_CANARY_LETTERS
    }
    assert known != canaries.make_canary_pairs(300, seed=2)
    letters = [[sum(w.count(x) for w in side) for x in "AMZ"] for side in zip(*known, strict=True)]
    assert np.allclose(letters, 300 * canaries.AUDIT_CANARY_LETTERS / 26, rtol=0.4)


def test_what_cannot_be_audited_is_refused(memorised, tmp_path):
    run, corpus = memorised
    other = tmp_path / "other.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 1, "paper"), other)
    with pytest.raises(ValueError, match="is not the text that"):
        run_audit.audit_training(run, other, tmp_path / "audit")
    with pytest.raises(ValueError, match=r"was not made by 'crtlib train'"):
        run_audit.audit_training(tmp_path, corpus, tmp_path / "audit")
    few = tmp_path / "few"
    few.mkdir()
    content = json.loads((run / run_audit.AUDITED_RECORD_FILE).read_text())
    for wrong in ({"planted": 199}, {"copies": 20}):
        content["canaries"] |= {"planted": 200, "copies": 1} | wrong
        (few / run_audit.AUDITED_RECORD_FILE).write_text(json.dumps(content))
        with pytest.raises(ValueError, match="N at least 200"):
            run_audit.audit_training(few, corpus, tmp_path / "audit")
    assert not (tmp_path / "audit").exists()


def test_more_canaries_are_taken_for_more_power():
    found = [
        run_audit.count_canaries_needed(1.0, 2.2, delta=1e-5, power=p) for p in (0.5, 0.9, 0.99)
    ]
    assert found[0] == run_audit.MIN_AUDIT_CANARIES < found[1] < found[2]
    at = {"delta": 1e-5, "proved": 1.0, "half_noise_epsilon": 2.2, "confidence": 0.99, "seed": 0}
    assert (
        run_audit.judge_gaps(
            np.zeros(found[1]), guesses=found[1] // 5, **at
        ).strongest_attacker_power
        >= 0.9
    )
    with pytest.raises(ValueError, match=r"^power=0\.9: needs more than 8,000 canaries"):
        run_audit.count_canaries_needed(8.0, 39.5, delta=1e-4, power=0.9)


def test_references_show_more_of_what_was_learned(memorised, tmp_path):
    run, corpus = memorised
    blank, _ = trained(memorised[0].parent, 0)
    other = tmp_path / "blank"
    shutil.copytree(blank, other)
    content = json.loads((blank / run_audit.AUDITED_RECORD_FILE).read_text())
    content["canaries"]["seed"] = 6  # it has read none at all
    (other / run_audit.AUDITED_RECORD_FILE).write_text(json.dumps(content))
    for references in ([other], [other, other]):
        out = tmp_path / f"audit{len(references)}"
        found = run_audit.audit_training(run, corpus, out, references=references, seed=0)
        assert found.refuted and found.right > 0.8 * found.guessed
    unread = run_audit.audit_training(other, corpus, tmp_path / "unread", references=[run], seed=0)
    assert not unread.refuted
    with pytest.raises(ValueError, match="has read the canaries of"):
        run_audit.audit_training(run, corpus, tmp_path / "none", references=[blank])


@pytest.mark.parametrize("known", ["weights", "settings"])
def test_a_released_folder_that_read_the_canaries_is_no_reference(known, memorised, tmp_path):
    """Without a private record its weights or its settings show what it read. Fault: nobody looked
    there, so "its attacker did no better than a coin" of a model that had learned each canary."""
    run, corpus = memorised
    other = tmp_path / "released"
    shutil.copytree(run if known == "weights" else trained(run.parent, 0)[0], other)
    (other / run_audit.AUDITED_RECORD_FILE).unlink()
    if known == "settings":
        settings = {"canaries": PLANTED, "seed": 5}
        (other / run_audit.SETTINGS_FILE).write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="released has read the canaries of"):
        run_audit.audit_training(run, corpus, tmp_path / "a", references=[other], seed=0)
    assert not (tmp_path / "a").exists()


def test_a_claim_is_refuted_of_canaries_that_noise_never_touched(memorised, tmp_path):
    """S-DP and JFT make such claims: their epsilon is for a policy that misses nothing."""
    run, corpus = memorised
    open_ = tmp_path / "open"
    shutil.copytree(run, open_)
    content = json.loads((run / run_audit.AUDITED_RECORD_FILE).read_text())
    content["canaries"]["in_public"] = list(range(PLANTED))
    (open_ / run_audit.AUDITED_RECORD_FILE).write_text(
        json.dumps(content | {"protects_all": False})
    )
    found = run_audit.audit_training(open_, corpus, tmp_path / "audit", claim=1.0, seed=0)
    assert found.refuted and found.lines()[1] == "MORE THAN CLAIMED"
    kept = run_audit.audit_training(open_, corpus, tmp_path / "high", claim=9.0, seed=0)
    assert not kept.refuted and kept.lines()[1].startswith("not refuted")
    with pytest.raises(ValueError, match=r"claim=0\.0: must be positive"):
        run_audit.audit_training(open_, corpus, tmp_path / "none", claim=0.0, seed=0)
    record = {"corpus": {"sha256": ""}}
    with pytest.raises(ValueError, match="tests a claim"):
        evidence.read_evidence(open_, record, tmp_path / "audit" / "audit.json", None)


@pytest.mark.parametrize("method", ["crt", "jft", "selective", "dpsgd", "sgd"])
@pytest.mark.parametrize("unit", ["turn", "dialogue"])
def test_pi_passes_over_canaries_of_an_audit_and_pi_c_finds_them(method, unit):
    study = CrtStudy(
        method=method, model="lstm", gamma=0.0, seed=0, dialogues=20, heldout=10, canaries=5,
        copies=1, audited=True, unit=unit,
    ).ready()  # fmt: skip
    read = study_data.prepare_data(study)
    words = [f"USR: {word}" for word, _ in canaries.make_canary_pairs(5, seed=0)]
    planted = {p.text for p in read.points if p.user.startswith(canaries.CANARY_USER_PREFIX)}
    assert planted == {*words} and {*words} <= {p.text for p in read.prepared.private}
    public = {p.text for p in read.prepared.public}
    assert ({*words} <= public) == (method == "jft") and read.rates.miss.failures == 0
    if method == "selective":  # read without noise
        flagged = dict(zip(read.points, read.flags, strict=True))
        assert not any(flagged[p] for p in read.points if p.text in planted)
    assert (
        max(map(len, read.tokenizer.encode(words))) > canaries.AUDIT_CANARY_LETTERS
    )  # nobody learned them
    with pytest.raises(ValueError, match="copies=2: must be 1 where canaries are audited"):
        replace(study, copies=2)


def test_canaries_auto_are_as_many_as_power_needs(tmp_path, registry, monkeypatch):
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0, "paper"), tmp_path / "talk.jsonl")
    monkeypatch.setattr(run_audit, "MAX_AUDIT_CANARIES", 600)

    def planted(**how):
        made = train_on_corpus.train(tmp_path / "talk.jsonl", width=8, epochs=1, **how)
        assert made.study.audited and made.study.copies == 1
        return made.study.canaries

    one = {"canaries": "auto", "epsilon": 1.0, "delta": 1e-6}
    assert planted(power=0.1, **one) == run_audit.MIN_AUDIT_CANARIES < planted(**one) <= 600
    assert planted(canaries="auto", method="sgd") == run_audit.MIN_AUDIT_CANARIES
    with pytest.raises(ValueError, match="canaries=60: must be auto, or at least 200 of one copy"):
        planted(canaries=60, copies=1)
    with pytest.raises(ValueError, match="needs more than 600 canaries"):
        planted(canaries="auto", power=0.9, epsilon=8.0)


def test_an_audit_rounds_what_was_proved_up_and_what_was_shown_down():
    """Fault: both were rounded to the nearest, so "proved 2.99" of 2.9931."""
    found = run_audit.RunAudit(0.9967, 0.95, 300, 100, 60, 2.9931, 99, 0.61)
    assert found.lines()[0] == "proved 3 \u00b7 audited at least 0.99 (95 %)"
