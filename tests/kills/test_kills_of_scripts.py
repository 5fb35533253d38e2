"""A script that is killed between two steps of a session or of a Trainer, or before a call to the
disk while it opens, closes and certifies: run again, it leaves what an undisturbed one leaves."""

import os
import shutil
import signal

import pytest

import confide
from confide import odometer
from confide.release import certify
from tests.kills import __main__ as kills
from tests.kills import test_every_call as calls

transformers = pytest.importorskip("transformers", reason="the package transformers is missing")
peft = pytest.importorskip("peft", reason="the package peft is not installed")
pytest.importorskip("datasets", reason="the package datasets is not installed")

from confide import hf  # noqa: E402
from tests.models.test_pretrained import tiny  # noqa: E402

CRT = {"method": "crt", "unit": "turn", "policy": "regex:customersim", "epsilon": 8.0,
       "delta": 1e-4, "repeatable_noise": True}  # fmt: skip
SAMPLED_CALLS = 8
"""Calls to the disk before which a script is killed, evenly over all that it makes."""


def certified(home):
    """The certificate, over one that a killed script has written."""
    confide.certify(
        home / "m", home / "page.html", audience="officer", secrets_per_person=(2,), force=True
    )


def goes_on(error):
    """Whether a script that is run again need only certify: its model is finished."""
    return "is a finished model" in str(error)


def script_of_session(base, kill_at):
    """A script in a home; it says how many steps there are."""

    def job(home, _):
        steps = 0
        try:
            with confide.Session(home / "c.jsonl", out=home / "m", width=4, epochs=2, **CRT) as s:
                steps = len(s)
                for step in s:
                    if step.number == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    step(learning_rate_factor=1 - step.number / (1 + len(s)))
                s.close()
        except ValueError as error:
            if not goes_on(error):
                raise
        certified(home)
        return steps

    return job


class KillBeforeStep(transformers.TrainerCallback):
    def __init__(self, number):
        self.number = number

    def on_step_begin(self, args, state, control, **more):
        if state.global_step + 1 == self.number:
            os.kill(os.getpid(), signal.SIGKILL)


def script_of_trainer(base, kill_at):
    def job(home, _):
        steps = 0
        try:
            trainer = hf.Trainer(
                str(base),
                transformers.TrainingArguments(
                    str(home / "m"), num_train_epochs=2, per_device_train_batch_size=8,
                    learning_rate=1e-3, lr_scheduler_type="linear", report_to="none", seed=3,
                    use_cpu=True, bf16=False, disable_tqdm=True, logging_steps=1,
                ),
                train_dataset=home / "c.jsonl", peft_config=peft.LoraConfig(r=2, lora_alpha=4),
                callbacks=[KillBeforeStep(kill_at)], confide=CRT | {"context": 64, "long": "cut"},
            )  # fmt: skip
            steps = len(trainer.session)
            trainer.train()
        except ValueError as error:
            if not goes_on(error):
                raise
        certified(home)
        return steps

    return job


SCRIPTS = {"Session": script_of_session, "Trainer": script_of_trainer}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny("llama", tmp_path_factory.mktemp("models") / "base")


def compared(home, whole, moment):
    """What a script that was killed leaves is what an undisturbed one does: the same files, weights
    bit for bit, and in each ledger one finished run. One that had begun and has no checkpoint is
    counted besides, and the certificate says so; how many runs there are."""
    assert calls.names(home) == calls.names(whole), moment
    calls.ledger(home, moment)
    runs = len({entry.run for entry in odometer.read_entries(home / "c.jsonl.odometer")})
    one, other = calls.kept(whole), calls.kept(home)
    changed = [name for name in one if one[name] != other[name]]
    assert changed == ([] if runs == 1 else ["page.html", "page.json"]), moment
    found = certify.compare_certificate_with_run(home / "m", home / "page.html")[0]
    assert found is None, moment
    return runs


@pytest.mark.nightly
@pytest.mark.parametrize("door", SCRIPTS)
def test_a_script_that_is_killed_goes_on_when_it_is_run_again(door, base, tmp_path, monkeypatch):
    monkeypatch.setenv("CRTLIB_REGISTRY", "")  # put back afterwards; each home has its own
    script = SCRIPTS[door]
    undisturbed = script(base, None)
    warm = calls.prepared(tmp_path / "warm", "train", None)
    last = undisturbed(warm, None)  # and no fork imports or computes anything again
    whole = calls.prepared(tmp_path / "whole", "train", None)
    code, made = calls.called(undisturbed, whole)
    assert code == 0, (whole / "log").read_text()
    assert last > 8 and made > 20 * SAMPLED_CALLS
    moments = [("step", n) for n in (1, 2, last // 2, last - 1, last)]
    moments += [("call", 1 + made * k // SAMPLED_CALLS) for k in range(SAMPLED_CALLS)]
    for what, number in moments:
        home = calls.prepared(tmp_path / "again", "train", None)
        if what == "step":
            assert kills.finish(kills.start(script(base, number), home, home)) == -signal.SIGKILL
        else:
            assert calls.called(undisturbed, home, number)[0] == calls.KILLED
        assert kills.finish(kills.start(undisturbed, home, home)) == 0, (home / "log").read_text()
        runs = compared(home, whole, (what, number))
        assert runs == 1 or number not in (1, last - 1, last), (what, number)
        shutil.rmtree(home)
