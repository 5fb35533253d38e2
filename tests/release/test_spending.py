"""What earlier trainings of a text spent is added to each later promise."""

import json
import shutil
import struct

import pytest

from confide.release import certify, seal, verify, void_reasons
from confide.training import train_on_corpus
from tests import trainings
from tests.texts import screen_rates, write_simulated_text
from tests.trainings import CRT, SGD_GPT2, TINY, make_certificate


def test_an_earlier_plan_is_no_silence(tmp_path, run, monkeypatch):
    """The page said that no earlier run is known, and that one was without protection."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 10]
    assert run("protect", text, *words, "--out", tmp_path / "plan")[0] == 0
    monkeypatch.setattr(void_reasons, "reason_before_plan", lambda *_, **__: None)
    for name in ("one", "two"):
        words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 8]
        assert run("train", text, *words, "--out", tmp_path / name)[0] == 0
    make_certificate(tmp_path / "two", tmp_path / "two.html")
    page = (tmp_path / "two.html").read_text()
    assert "No earlier run" not in page and "with one that this promise does not count" in page


def test_the_next_model_composes_with_every_trial_of_the_last(tmp_path):
    """--trials was charged to the model of which it was said, and to no later one."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", trials=5, **CRT)
    trainings.train(text, out=tmp_path / "two", **CRT)
    one, two = (make_certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("one", "two"))
    assert (one["verdict"], one["searched"]["trials"]) == ("holds", 5)
    assert two["guarantee"]["missed"]["epsilon"] > one["guarantee"]["missed"]["epsilon"]
    key = seal.ensure_signing_key(next(tmp_path.glob("*.odometer")))
    record = json.loads((tmp_path / "one.work" / "record.json").read_text())
    record["searched"]["trials"] = 1
    (tmp_path / "one.work" / "record.json").write_text(json.dumps(seal.sign_value(record, key)))
    void = make_certificate(tmp_path / "one", tmp_path / "one.html")["void_because"]
    assert "The odometer disagrees about the trials of this run." in void


def test_a_model_that_was_saved_again_is_known(tmp_path):
    """Another metadata entry turned "void" into "holds"; its heirs counted as
    protected."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m0", method="sgd", model="gpt2", **TINY)
    shutil.copytree(tmp_path / "m0", tmp_path / "copy")
    weights = tmp_path / "copy" / "model.safetensors"
    raw = weights.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] = {"saved": "again"}
    again = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(again)) + again + raw[8 + size :])
    for name, init in (("heir", tmp_path / "m0"), ("copied", tmp_path / "copy")):
        trainings.train(text, out=tmp_path / name, init=str(init), **CRT)
        made = make_certificate(tmp_path / name, tmp_path / f"{name}.html")
        assert made["verdict"] == "void" and "without protection" in made["void_because"][0]
    trainings.train(text, out=tmp_path / "fresh", **CRT)
    before = make_certificate(tmp_path / "fresh", tmp_path / "fresh.html")["spent_before"]
    assert (before["runs"], before["unprotected"]) == (0, 3)


def test_a_second_model_does_not_say_its_own_epsilon_as_if_it_were_all(tmp_path):
    text = write_simulated_text(tmp_path / "c.jsonl")
    for name in ("one", "two"):
        trainings.train(text, out=tmp_path / name, **CRT)
    said = [(tmp_path / name / "guarantee.txt").read_text() for name in ("one", "two")]
    assert "alone" not in said[0]
    assert "of this model and 1 earlier on this text" in said[1]
    assert "together; of this model alone: (" in said[1]


def test_two_plans_on_one_text_do_not_hold_and_are_known(tmp_path, run, monkeypatch):
    """The second certificate said that no earlier run is known, and held as if it were alone."""
    text = write_simulated_text(tmp_path / "c.jsonl", dialogues=20)
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 10, "--scale", 5]
    assert run("protect", text, *words, "--out", tmp_path / "plan")[0] == 0
    plan = ["train", text, "--plan", tmp_path / "plan", "--epochs", 1, "--width", 4]
    assert run(*plan, "--out", tmp_path / "one")[0] == 0
    code, _, error = run(*plan, "--out", tmp_path / "two")
    assert code == 2 and "a certificate would be void: What an earlier plan spent" in error
    monkeypatch.setattr(void_reasons, "reason_before_plan", lambda *_, **__: None)  # as before 0.4
    assert run(*plan, "--out", tmp_path / "two")[0] == 0
    made = [make_certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("one", "two")]
    assert [c["verdict"] for c in made] == ["holds", "void"]
    assert "No earlier run" in (tmp_path / "one.html").read_text()
    said = (tmp_path / "two.html").read_text()
    assert "No earlier run" not in said and "was counted for the secrets of that plan" in said


def test_bounds_of_earlier_runs_hold_together_with_this_one(tmp_path):
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", **CRT)
    second = CRT | {"policy": "regex:multiwoz", "conservative": "cautious"}
    trainings.train(text, out=tmp_path / "two", **second)
    one, two = (make_certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("one", "two"))
    assert one["labels"]["judged"] == two["labels"]["judged"] == 2
    both = [c["rates"]["public"]["upper"] for c in (one, two)]
    assert two["spent_before"]["delta2"] >= sum(both) * (1 - 1e-9)


def test_the_odometer_beside_the_corpus_counts_wherever_the_run_is_entered(tmp_path, monkeypatch):
    """A colleague's runs, whose registry is another: "No earlier run on this text is known here"
    was printed beside the folder that names them."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", **CRT)
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "mine"))
    with pytest.raises(ValueError, match=r"^odometer: .* this text has one already"):
        trainings.train(text, out=tmp_path / "two", odometer=tmp_path / "far" / "mine", **CRT)
    assert not (tmp_path / "two.work").exists()  # what is refused leaves nothing


def test_what_is_assumed_of_a_base_is_assumed_of_what_is_made_of_it(tmp_path):
    """A model from outside, then one of crtlib on other text, then one on this text: "assumed:
    it had not read this text" stood in the second certificate and not in the third."""
    first, second, third = (write_simulated_text(tmp_path / f"{n}.jsonl", seed) for n, seed in
                            (("a", 3), ("b", 4), ("c", 5)))  # fmt: skip
    start = SGD_GPT2 | {"policy": "regex:customersim"}
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
        named = {
            "policy": "regex:customersim", "epochs": 1, "sampling_probability": 1.0,
            "init": str(tmp_path / init),
        }  # fmt: skip
        train_on_corpus.train(text, out=tmp_path / text.stem, **named)
        assumed.append(
            make_certificate(tmp_path / text.stem, tmp_path / f"{text.stem}.html")["assumed"]
        )
    assert assumed[0][0] == "outside had not read this text"
    assert {said for said in assumed[1] if said.endswith("had not read this text")} == {
        assumed[0][0],
        "b had not read this text",
    }


def test_a_model_without_labels_counts_what_those_of_earlier_ones_judged(tmp_path, run):
    """DP-SGD after CRT printed the bounds of the earlier search as if its labels had judged one
    pair, and as if they were certain: no sentence said a confidence."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "crt", **CRT)
    trainings.train(text, out=tmp_path / "dpsgd", method="dpsgd", **TINY)
    page = tmp_path / "d.html"
    before = make_certificate(tmp_path / "dpsgd", page)["spent_before"]["delta2"]
    assert "each was measured on labels, with a confidence of its own" in page.read_text()
    screen_rates(text, tmp_path / "s", "regex:multiwoz")
    made = make_certificate(tmp_path / "dpsgd", page)
    assert made["verdict"] == "holds" and made["spent_before"]["delta2"] > before
    other = make_certificate(tmp_path / "crt", tmp_path / "c.html")
    public = other["rates"]["public"]["upper"]
    assert made["spent_before"]["delta2"] == public
    assert certify.compare_certificate_with_run(tmp_path / "dpsgd", page)[0] is None
    assert verify.find_certificate_fault(tmp_path / "dpsgd", made) is None
    bill = ["--odometer", f"{text}.odometer"]
    more = ["--before", f"{text}.odometer", "--unit", "turn", "--epsilon", 3, "--delta", 1e-4,
            "--points", 100, "--batch-size", 10, "--epochs", 1]  # fmt: skip
    for words in (bill, more):  # account had the bounds of when it was trained
        code, said, error = run("account", *words, "--json")
        assert code == 0, error
        assert json.loads(said)["together"]["delta2"] == pytest.approx(public, rel=1e-12)
