"""A Trainer of transformers or of TRL takes the steps of a session."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
import peft  # noqa: E402
import transformers  # noqa: E402

import confide  # noqa: E402
from confide import hf  # noqa: E402
from confide.release import certify  # noqa: E402
from confide.training import odometer_run  # noqa: E402
from confide.training.train_on_corpus import train_for_command  # noqa: E402
from crtlib.text import customersim, jsonl  # noqa: E402
from crtlib.text.records import MASK  # noqa: E402
from crtlib.training import parallel  # noqa: E402
from tests.models.test_pretrained import tiny  # noqa: E402
from tests.test_session import home_of, unsalted  # noqa: E402
from tests.text.test_roles import screened, without_roles  # noqa: E402
from tests.training.test_loop import flat  # noqa: E402

needs_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="trl is not installed here"
)
CRT = {"method": "crt", "unit": "turn", "policy": "regex:customersim", "epsilon": 8.0,
       "delta": 1e-4, "context": 64, "long": "cut", "repeatable_noise": True}  # fmt: skip
LORA = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear")
RATE = 1e-3


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny("llama", tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    path = tmp_path_factory.mktemp("talk") / "talk.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(25, 0, "paper"), path)
    return path


def rows(number=30, seed=1, prefix=""):
    corpus = customersim.simulate_corpus(number, seed, "paper")
    said = [prefix + " ".join(turn.text for turn in d.turns[:2]) for d in corpus.dialogues]
    return datasets.Dataset.from_list([{"text": text} for text in said])


def arguments(out, kind="Trainer", **more):
    own = {"max_length": 64} if kind == "SFTTrainer" else {}
    if kind == "SFTTrainer":
        from trl import SFTConfig as Arguments
    else:
        from transformers import TrainingArguments as Arguments
    common = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "bf16": False, "seed": 3,
              "gradient_accumulation_steps": 2, "learning_rate": RATE, "report_to": "none",
              "lr_scheduler_type": "constant", "logging_steps": 1, "use_cpu": True,
              "gradient_checkpointing": False, "disable_tqdm": True}  # fmt: skip
    return Arguments(str(out), **own | common | more)


def made_by(door, text, out, base, *, alone=False, **options):
    """The weights that a door leaves, and its result."""
    same = {"init": str(base), "lora": 2, "lora_alpha": 4.0, "batch_size": 8, "epochs": 2,
            "learning_rate": RATE, "private_learning_rate": RATE, "dtype": "float32", "seed": 3,
            "device": "cpu", "out": out} | options  # fmt: skip
    if alone or same["method"] == "dpsgd" or same.get("unit") == "dialogue":  # all is private
        del same["learning_rate"]
    if door == "command":
        return train_for_command(text, **same)
    if door == "Session":
        with confide.Session(text, completions_alone=alone, **same) as session:
            for step in session:
                step()
            return session.close()
    more = {"completion_only_loss": True} if alone else {}
    trainer = getattr(hf, door)(
        str(base), arguments(out, door, **more), train_dataset=text, peft_config=LORA,
        confide=options,
    )  # fmt: skip
    trainer.train()
    trainer.save_model()
    return trainer.result


DPSGD = {n: x for n, x in CRT.items() if n not in ("method", "policy")} | {"method": "dpsgd"}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(CRT, id="CRT by turn"),
        pytest.param(CRT | {"unit": "dialogue"}, id="CRT", marks=pytest.mark.nightly),
        pytest.param(DPSGD, id="DP-SGD", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    "door",
    [
        pytest.param("Trainer", marks=pytest.mark.nightly),
        pytest.param("SFTTrainer", marks=needs_trl),
    ],
)
def test_each_door_leaves_the_model_of_the_command(
    door, options, talk, base, tmp_path, monkeypatch
):
    """Weights bit for bit; certificates field by field, but for the salted ones and what is
    assumed of the script."""
    ends, values = [], []
    for way in ("command", door):
        monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / way / "registry"))
        text = home_of(talk, tmp_path / way)
        ends.append(flat(made_by(way, text, tmp_path / way / "model", base, **options).run.model))
        value = certify.write_certificate(
            tmp_path / way / "model", tmp_path / way / "c.html", secrets_per_person=(), force=True
        )
        values.append(unsalted(value))
    assert torch.equal(*ends)
    (said,) = set(values[1]["assumed"]) - set(values[0]["assumed"])
    values[1]["assumed"].remove(said)
    pages = [json.dumps(v, sort_keys=True) for v in values]
    assert pages[0] == pages[1].replace(f"{said}; ", "").replace(f"; {said}", "")


class Spy(transformers.TrainerCallback):
    """What a tracker is told."""

    def __init__(self, stop=None, kill=None):
        self.logs, self.stop, self.kill = [], stop, kill

    def on_log(self, args, state, control, logs=None, **more):
        self.logs.append(dict(logs))

    def on_step_end(self, args, state, control, **more):
        if state.global_step == self.kill:
            raise KeyboardInterrupt
        control.should_training_stop = state.global_step == self.stop


def test_nothing_private_is_logged(talk, base, tmp_path):
    spy = Spy()
    trainer = hf.Trainer(
        str(base), arguments(tmp_path / "m"), train_dataset=talk, peft_config=LORA,
        callbacks=[spy], confide=CRT,
    )  # fmt: skip
    done = trainer.train()
    private = {step + 1 for step, log in enumerate(spy.logs[:-1]) if "loss" not in log}
    updates = trainer.result.run.updates
    assert len(private) == updates["private"] and len(spy.logs) - 1 == sum(updates.values())
    told = {name for log in spy.logs for name in log}
    # No time: of two trainings of which one had a long row it told which one, 22 times of 24.
    assert told == {"loss", "learning_rate", "epoch"} and done.metrics.keys() <= {"epoch"}
    points, shown = trainer.session.training.points, trainer.num_examples(None)
    assert 0.7 * points < shown < points - 1  # the rounded number
    assert trainer.state.num_input_tokens_seen == trainer.state.total_flos == 0


class OtherRate(transformers.TrainerCallback):
    """Changes what the schedule is divided by."""

    def on_step_begin(self, args, state, control, **more):
        args.learning_rate = RATE / 1000


def test_a_callback_that_changes_the_arguments_changes_no_step(base, tmp_path, monkeypatch):
    """It logged the rate of the schedule, and took steps of a thousand times that."""
    ends = []
    for name, callbacks in (("one", []), ("two", [OtherRate()])):
        monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / name))
        trainer = hf.Trainer(
            str(base), arguments(tmp_path / f"m {name}", num_train_epochs=1), train_dataset=rows(),
            callbacks=callbacks, confide={"epsilon": 8.0, "repeatable_noise": True},
        )  # fmt: skip
        trainer.train()
        ends.append(flat(trainer.result.run.model))
    assert torch.equal(*ends)


def test_an_evaluation_that_the_corpus_says_is_refused(base, tmp_path):
    """It was left out in silence, and the speed of each evaluation told how many rows were left:
    of two trainings that differed in one row the log said which one it was, 20 times of 20."""
    data = datasets.Dataset.from_dict({"text": [f"Row {k} of a text of ours." for k in range(30)]})
    with pytest.raises(ValueError, match="eval_dataset: has messages that are also in"):
        hf.Trainer(str(base), arguments(tmp_path / "m"), train_dataset=data,
                   eval_dataset=data.select([3]), confide={"epsilon": 8.0})  # fmt: skip


@pytest.mark.parametrize("way", ["given", "set"])
def test_an_evaluation_of_other_texts_is_refused(way, talk, base, tmp_path):
    """The loss of the very texts that were trained on was logged at each step."""
    spy, other = Spy(), datasets.Dataset.from_dict({"text": [f"Note {k}." for k in range(9)]})
    data = datasets.Dataset.from_dict({"text": [f"Row {k} of a text." for k in range(30)]})
    trainer = hf.Trainer(str(base), arguments(tmp_path / "m", eval_strategy="steps", eval_steps=1),
                         train_dataset=data, eval_dataset=other, callbacks=[spy],
                         confide={"epsilon": 8.0})  # fmt: skip
    assert trainer.evaluate()["eval_loss"] > 0
    private = datasets.Dataset.from_dict({"input_ids": [[3, 4, 5]], "labels": [[3, 4, 5]]})
    logged = len(spy.logs)
    with pytest.raises(ValueError, match="eval_dataset: must be the one that the Trainer was made"):
        if way == "given":
            trainer.evaluate(private, metric_key_prefix="train")
        else:
            trainer.eval_dataset = private
            trainer.evaluate()
    assert len(spy.logs) == logged
    with pytest.raises(ValueError, match="eval_dataset: must be one data set; join"):
        hf.Trainer(str(base), arguments(tmp_path / "n"), train_dataset=data,
                   eval_dataset={"train": data, "other": other})  # fmt: skip


@needs_trl
def test_a_trainer_of_trl_reports_to_nobody(base, tmp_path, monkeypatch):
    """TRL sends a message to the hub for each trainer, unless a variable forbids it."""
    from trl.trainer import base_trainer

    sent = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda *_, **k: sent.append(k))
    hf.SFTTrainer(str(base), arguments(tmp_path / "m", "SFTTrainer"), train_dataset=rows(),
                  confide={"epsilon": 8.0})  # fmt: skip
    assert sent == []


@needs_trl
def test_a_script_of_trl_changes_two_lines(base, tmp_path):
    """Rows without a label: differential privacy, which holds; evaluated on other rows."""
    spy = Spy()
    trainer = hf.SFTTrainer(
        model=str(base),
        args=arguments(tmp_path / "m", "SFTTrainer", num_train_epochs=1, eval_strategy="epoch",
                       lr_scheduler_type="linear"),
        train_dataset=rows(),
        eval_dataset=rows(5, prefix="Of another text: "),
        callbacks=[spy],
        confide={"epsilon": 8.0},
    )  # fmt: skip
    assert trainer.session.training.points == 30  # none is held out
    trainer.train()
    value = trainer.certify(tmp_path / "c.html")
    assert value["verdict"] == "holds" and value["guarantee"]["kind"] == "dp"
    assert any("eval_loss" in log for log in spy.logs)
    assert any(line.startswith("perplexity of other text ") for line in trainer.result.lines)
    rates = [log["learning_rate"] for log in spy.logs if "learning_rate" in log]
    assert rates[0] == RATE and rates == sorted(rates, reverse=True) and rates[-1] < RATE / 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    model.generate(**tokenizer("hello", return_tensors="pt"), max_new_tokens=2)
    with pytest.raises(ValueError, match="copy that folder as it is"):
        trainer.save_model(tmp_path / "elsewhere")


@pytest.mark.nightly
def test_a_training_that_was_killed_goes_on_with_its_schedule(talk, base, tmp_path):
    ends = []
    for kill in (None, 10):
        home = tmp_path / str(kill)
        text = home_of(talk, home)
        for last in (False, True) if kill else (True,):
            spy = Spy(kill=None if last else kill)
            trainer = hf.Trainer(
                str(base), arguments(home / "m", lr_scheduler_type="linear", weight_decay=0.1),
                train_dataset=text, confide=CRT, callbacks=[spy], peft_config=LORA,
            )  # fmt: skip
            if last:
                if kill:
                    with pytest.raises(
                        ValueError, match=r"^resume_from_checkpoint=False: .* steps of"
                    ):
                        trainer.train(resume_from_checkpoint=False)
                trainer.train(resume_from_checkpoint=bool(kill) or None)
                ends.append((flat(trainer.result.run.model), trainer.state.global_step))
            else:
                with pytest.raises(KeyboardInterrupt):
                    trainer.train()
                assert trainer.session.training.phases_done
    assert torch.equal(ends[0][0], ends[1][0]) and ends[0][1] == ends[1][1]


def test_a_training_that_was_killed_after_its_last_step_is_written(base, tmp_path, monkeypatch):
    """A Trainer sets which tokens begin and end a text, though no step is left."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    options = {"confide": {"epsilon": 8.0, "context": 64, "long": "cut"}, "train_dataset": rows()}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(odometer_run.OdometerRun, "finish", stop)
        hf.Trainer(str(base), arguments(tmp_path / "m"), **options).train()
    trainer = hf.Trainer(str(base), arguments(tmp_path / "m"), **options)
    trainer.train()
    assert trainer.result.holds and (tmp_path / "m" / "model.safetensors").is_file()


def test_what_a_callback_stops_is_charged_in_full(base, tmp_path):
    trainer = hf.Trainer(
        str(base), arguments(tmp_path / "m"), train_dataset=rows(), callbacks=[Spy(stop=2)],
        confide={"epsilon": 8.0, "context": 64, "long": "cut"},
    )  # fmt: skip
    with pytest.raises(ValueError, match="there is no release yet"):
        trainer.save_model()
    trainer.train()
    assert trainer.result.holds and trainer.result.run.updates["private"] == 2
    assert sum(e.steps for e in trainer.result.run.events) == len(trainer.session)
    with pytest.raises(ValueError, match=r"^train: this Trainer has written its release"):
        trainer.train()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"},
         "load_best_model_at_end=True: must be False; the best one"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1: must be 0.0"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha=5.0: must be None; its noise"),
        ({"torch_compile": True}, "torch_compile=True: must be False; the layers"),
        ({"push_to_hub": True}, "push_to_hub=True: must be False; push the folder"),
        ({"max_steps": 5}, "max_steps=5: must be -1"),
        ({"optim": "sgd"}, "optim='sgd': must be 'adamw_torch'"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"},
         "lr_scheduler_type='reduce_lr_on_plateau': must be 'linear' or 'cosine' or"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True: must be False"),
        ({"include_num_input_tokens_seen": "all"},
         "include_num_input_tokens_seen='all': must be 'no'; how many tokens"),
        ({"skip_memory_metrics": False}, "skip_memory_metrics=False: must be True; how much"),
        ({"num_train_epochs": 1.5}, "num_train_epochs=1.5: must be a whole number"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)  # fmt: skip
def test_arguments_that_cannot_be_honoured(changed, said, tmp_path):
    args = arguments(tmp_path / "m")
    for name, value in changed.items():
        setattr(args, name, value)
    with pytest.raises(ValueError, match=f"^{said}"):
        hf.Trainer("base", args, train_dataset=rows(5))
    assert not list(tmp_path.iterdir())


@needs_trl
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"packing": True}, "packing=True: must be False; a packed row"),
        ({"padding_free": True}, "padding_free=True: must be False; rows that are joined"),
        ({"use_liger_kernel": True}, "use_liger_kernel=True: must be False"),
        ({"assistant_only_loss": True}, "assistant_only_loss=True: must be False"),
        ({"truncation_mode": "keep_end"}, "truncation_mode='keep_end': must be 'keep_start'; a"),
        ({"completion_only_loss": True}, "completion_only_loss=True: must be None; rows have no"),
    ],
)
def test_arguments_of_trl_that_cannot_be_honoured(changed, said, tmp_path):
    args = arguments(tmp_path / "m", "SFTTrainer")
    for name, value in changed.items():
        setattr(args, name, value)
    with pytest.raises(ValueError, match=f"^{said}"):
        hf.SFTTrainer("base", args, train_dataset=rows(5))


def test_private_steps_in_bfloat16_are_refused(base, tmp_path):
    args = arguments(tmp_path / "m")
    args.bf16 = True
    with pytest.raises(ValueError, match=r"^bf16=True: must be False where noise is added"):
        hf.Trainer(str(base), args, train_dataset=rows(5))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data_collator": list}, "data_collator: must be left out"),
        ({"compute_loss_func": sum}, "compute_loss_func: must be left out"),
        ({"optimizers": (torch.optim.Adam, None)}, "optimizers: must be left out"),
        ({"peft_config": peft.LoraConfig(lora_dropout=0.1)}, "peft_config: lora_dropout=0.1 must"),
        ({"peft_config": peft.IA3Config()}, "peft_config: is a IA3Config, must be a LoraConfig"),
        ({"confide": "epsilon=3"}, "confide='epsilon=3': must be a dict, such as"),
        ({"confide": {"out": "x"}}, "confide: 'out' must be left out; args.output_dir sets it"),
        ({"confide": {"init": "x"}}, "confide: 'init' must be left out; model sets it"),
        ({"confide": {"corpus": "x"}}, "confide: 'corpus' must be left out; train_dataset sets it"),
        (
            {"confide": {"device": "cpu"}},
            "confide: 'device' must be left out; args.use_cpu sets it",
        ),
        (
            {"train_dataset": rows(5).to_iterable_dataset()},
            "train_dataset: is a IterableDataset, must be a datasets.Dataset",
        ),
        ({"eval_dataset": rows(5).to_iterable_dataset()}, "eval_dataset: is a IterableDataset"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_parameters_that_cannot_be_honoured(given, said, tmp_path):
    with pytest.raises(ValueError, match=f"^{said}"):
        hf.Trainer("base", arguments(tmp_path / "m"), **{"train_dataset": rows(5)} | given)


@pytest.mark.parametrize("name", hf.OVERRIDDEN_METHODS)
def test_a_method_that_no_step_would_call_is_refused(name, base, tmp_path):
    """A loss of a subclass was accepted, and never called."""
    own = type("Own", (hf.Trainer,), {name: lambda *_, **__: 0})
    with pytest.raises(ValueError, match=f"^{name}: must not be overridden"):
        own(str(base), arguments(tmp_path / "m"), train_dataset=rows(5))
    assert not list(tmp_path.iterdir())


def test_the_largest_norm_is_that_of_the_arguments_and_who_is_held_out_is_said(
    base, tmp_path, caplog
):
    """``max_grad_norm=0.01`` was accepted and ignored, and a fifth of the rows left out without a
    word."""
    args = arguments(tmp_path / "m", num_train_epochs=1, max_grad_norm=0.01)
    trainer = hf.Trainer(str(base), args, train_dataset=rows(), confide={"epsilon": 8})
    trainer.train()
    value = certify.write_certificate(tmp_path / "m", tmp_path / "m.html")
    assert {row["clip_norm"] for row in value["mechanism"]["phases"]} == {0.01}
    assert caplog.messages.count(hf.HELD_OUT_LINE) == 1 and "about 20%" in hf.HELD_OUT_LINE
    caplog.clear()
    for number, method in ((0.0, "dpsgd"), (0.5, "sgd")):
        args = arguments(tmp_path / method, max_grad_norm=number)
        with pytest.raises(ValueError, match=r"^(max_grad|clip)_norm=0\.\d: "):
            hf.Trainer(str(base), args, train_dataset=rows(seed=3), confide={"method": method})
    args = arguments(tmp_path / "e", num_train_epochs=1)
    texts = {"train_dataset": rows(), "eval_dataset": rows(6, seed=9, prefix="other ")}
    hf.Trainer(str(base), args, confide={"epsilon": 8}, **texts).train()
    assert hf.HELD_OUT_LINE not in caplog.messages


def test_a_checkpoint_that_a_training_would_not_read_is_refused():
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint='runs/checkpoint-500': must be"):
        hf.Trainer.train(object(), "runs/checkpoint-500")


def test_nothing_is_gone_on_with_where_nothing_was_cut_short(base, tmp_path):
    trainer = hf.Trainer(str(base), arguments(tmp_path / "m"), train_dataset=rows())
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint=True: must be None"):
        trainer.train(resume_from_checkpoint=True)
    assert (
        trainer.session.training.steps_left == len(trainer.session)
        and not (tmp_path / "m").exists()
    )


def test_processes_of_a_trainer_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "count_launched_processes", lambda: 2)
    with pytest.raises(ValueError, match=r"^torchrun: started 2 processes, which must train tog"):
        hf.Trainer("base", arguments(tmp_path / "m"), train_dataset=rows(5))


def take_part(door, text, base, folder):
    """What each process that torchrun starts does: rows, or a corpus, with a linear schedule."""
    with parallel.join_process_group() as group:
        trainer = getattr(hf, door)(
            str(base),
            arguments(folder / "m", door, lr_scheduler_type="linear", weight_decay=0.1,
                      per_device_train_batch_size=8 // group.size, gradient_accumulation_steps=1),
            train_dataset=rows() if text is None else text,
            eval_dataset=rows(5, prefix="Of another text: "), peft_config=LORA,
            confide={"repeatable_noise": True, "epsilon": 8.0} if text is None else CRT,
        )  # fmt: skip
        trainer.train()
        trainer.save_model()
        assert bool(trainer.certify(folder / "c.html", force=True)) == group.is_leader
        if group.is_leader:
            run = trainer.result.run
            torch.save((flat(run.model), run.updates, run.processes), folder / "end.pt")


@pytest.mark.nightly
@pytest.mark.parametrize("door", ["Trainer", pytest.param("SFTTrainer", marks=needs_trl)])
def test_two_processes_train_what_one_does(door, talk, base, tmp_path):
    """Through the Trainers' doors, but for rounding: of a corpus (CRT), and of rows (DP-SGD)."""
    ends = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        text = home_of(talk, folder) if door == "Trainer" else None
        call = f"{door!r}, {text and str(text)!r}, {str(base)!r}, pathlib.Path({str(folder)!r})"
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(
            f"import pathlib, tests.test_hf as t\nt.take_part({call})\n"
        )
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launch += [f"--nproc-per-node={processes}", str(folder / "script.py")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1",
                            "CRTLIB_REGISTRY": str(folder / "registry")}  # fmt: skip
        subprocess.run(launch, cwd=Path(__file__).parents[1], env=env, check=True)
        ends.append(torch.load(folder / "end.pt"))
    (one, steps, _), (two, same, number) = ends
    assert (steps, 2) == (same, number)
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6)


def test_a_model_in_memory_is_that_of_its_folder(base, tmp_path):
    """Nobody could say what another one has read."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    options = {"train_dataset": rows(15), "confide": {"context": 64, "long": "cut"}}
    assert hf.Trainer(model, arguments(tmp_path / "a"), **options).session
    with torch.no_grad():
        model.model.norm.weight[0] += 1
    with pytest.raises(ValueError, match=r"model: model.norm.weight is not that of .*base; save"):
        hf.Trainer(model, arguments(tmp_path / "b"), **options)
    with pytest.raises(ValueError, match="epsilom: no such option; did you mean epsilon"):
        hf.Trainer(str(base), arguments(tmp_path / "b"), train_dataset=rows(15),
                   confide={"epsilom": 3})  # fmt: skip
    left = [path.name for path in (tmp_path / "b.work").rglob("*")]
    assert not [name for name in left if name.endswith("jsonl")]
    model.config._name_or_path = ""
    with pytest.raises(ValueError, match="model: was made in memory; save it"):
        hf.Trainer(model, arguments(tmp_path / "c"), **options)


ROLES = {"USR": "user", "SYS": "assistant"}


def conversations():
    """Of a simulated person, ended by an answer; three words a turn."""
    for dialogue in customersim.simulate_corpus(12, 1, "paper").dialogues:
        said = [
            {"role": ROLES[t.speaker], "content": " ".join(t.text.split()[:3])}
            for t in dialogue.turns
        ]
        said = said[1:5] if said[0]["role"] == "assistant" else said[:4]
        yield said if said[-1]["role"] == "assistant" else said[:-1]


FORMS = {
    "messages": lambda m: {"messages": m},
    "completions of messages": lambda m: {"prompt": m[-2:-1], "completion": m[-1:]},
    "completions": lambda m: {"prompt": f"Q: {m[-2]['content']}\nA:",
                              "completion": f" {m[-1]['content']}"},
    "text": lambda m: {"text": m[-1]["content"]},
}  # fmt: skip
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.nightly
@needs_trl
@pytest.mark.parametrize("form", FORMS)
def test_tokens_and_labels_are_those_of_trl(form, base, tmp_path):
    """Of each row; ours has a begin and an end besides, where TRL has none."""
    import trl

    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    own = transformers.AutoTokenizer.from_pretrained(folder)
    own.chat_template = CHATML
    own.save_pretrained(folder)
    data = datasets.Dataset.from_list([FORMS[form](m) for m in conversations()])
    other = [{"role": role, "content": "Of another text"} for role in ROLES.values()]
    other = datasets.Dataset.from_list([FORMS[form](other)])
    args = {"num_train_epochs": 1, "max_length": 64}
    ours = hf.SFTTrainer(str(folder), arguments(tmp_path / "m", "SFTTrainer", **args),
                         train_dataset=data, eval_dataset=other)  # fmt: skip
    training = ours.session.training
    rows = training._parts["private"].tolist()
    marks = training._loss_mask.get("private", [[True] * len(row) for row in rows])
    mine = {tuple(row): mark for row, mark in zip(rows, marks, strict=True)}
    theirs = trl.SFTTrainer(
        ours.session.model, arguments(tmp_path / "t", "SFTTrainer", **args), train_dataset=data,
        processing_class=ours.processing_class,
    ).train_dataset  # fmt: skip
    begin, end = ours.processing_class.bos_token_id, ours.processing_class.eos_token_id
    assert len(theirs) > 4
    for row in theirs:
        ids = tuple(row["input_ids"])
        labels = row.get("labels") or [
            t if m else -100
            for t, m in zip(ids, row.get("completion_mask") or [1] * len(ids), strict=True)
        ]
        framed = [(a, b) for a in ((), (begin,)) for b in ((), (end,))
                  if (*a, *ids, *b)[:65] in mine]  # fmt: skip
        assert framed, ours.processing_class.decode(ids)
        before, after = framed[0]
        mark = mine[(*before, *ids, *after)[:65]]
        got = [bool(x) for x in mark[len(before) : len(before) + len(ids)]]
        want = [label != -100 for label in labels][: len(got)]
        assert got[1:] == want[1:]  # nothing predicts the first


BRIEF = "{% for m in messages %}{{ m['role'][0] + '>' + m['content'] + '\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def chat(base, tmp_path_factory):
    """The model with a short chat template: it reads 64 tokens."""
    folder = tmp_path_factory.mktemp("models") / "chat"
    shutil.copytree(base, folder)
    own = transformers.AutoTokenizer.from_pretrained(folder)
    own.chat_template = BRIEF
    own.save_pretrained(folder)
    return folder


READ = {"method": "crt", "epsilon": 8.0, "delta": 1e-4, "context": 64, "long": "cut",
            "repeatable_noise": True, "batch_size": 4, "epochs": 2}  # fmt: skip


@pytest.mark.nightly
def test_completions_of_a_screened_folder_are_learned_alone(chat, tmp_path):
    """As a chat, each message with its role; of a folder of before both are refused."""
    folder = screened(tmp_path)
    with confide.Session(folder, init=str(chat), completions_alone=True, **READ) as session:
        training, tokenizer = session.training, session.tokenizer
        rows = [row for part in training._parts.values() for row in part.tolist()]
        marks = [mark for part in training._loss_mask.values() for mark in part.tolist()]
    text = f"u>I am {MASK}\na>your number?\nu>it is {MASK}\na>yes\n"
    assert {tuple(row) for row in rows} == {tuple(*tokenizer.encode([text]))}
    learned = [t for t, m in zip(rows[0], marks[0], strict=True) if m]
    assert tokenizer.decode(learned) == "yes\n" and marks == marks[:1] * len(rows)
    with_trl = importlib.util.find_spec("trl") is not None
    ends = [
        flat(made_by(door, folder, tmp_path / door, chat, alone=True, **READ).run.model)
        for door in (("Session", "SFTTrainer") if with_trl else ("Session",))
    ]
    assert all(torch.equal(ends[0], end) for end in ends)
    assert certify.write_certificate(
        tmp_path / "Session", tmp_path / "c.html", secrets_per_person=()
    )
    without_roles(folder)
    for given, name in (
        ({"completions_alone": True}, "completions_alone"),
        ({"template": "chat"}, "template='chat'"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: .* does not say who spoke, as it was"):
            confide.Session(folder, init=str(chat), **given, **READ)


def test_rows_become_conversations():
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    turns = [("user", "hi"), ("assistant", "hello")]
    for row, want in (
        ({"messages": said}, turns),
        ({"prompt": "hi", "completion": "hello"}, turns),
        ({"prompt": said[:1], "completion": said[1:]}, turns),
        ({"text": "hi"}, [("", "hi")]),
    ):
        assert hf._dialogue_of_row(3, row).user == ""  # row-3 would be a person of every text
        dialogue = hf._dialogue_of_row(3, row | {"user": 7})
        assert dialogue.user == "7" and [(t.speaker, t.text) for t in dialogue.turns] == want
    with pytest.raises(ValueError, match="train_dataset: must have text, messages"):
        hf._dialogue_of_row(0, {"labels": [1]})
