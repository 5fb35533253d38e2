"""A session is the training of the command, with somebody's own lines between its steps."""

import json
import math
import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import confide
from confide import odometer
from confide.assumption_sentences import (
    Assumption,
    is_of_earlier_model,
    read_assumption,
    states_kind,
)
from confide.release import certify, file_sources, released_folder, seal, verify
from confide.reports import certificate_pages
from confide.training import train_on_corpus, training_of_study, training_summary
from confide.training.train_on_corpus import train_for_command
from crtlib.text import corpora, customersim, jsonl
from crtlib.text.records import Corpus, Dialogue, Turn
from crtlib.training.loop import Training
from tests.training.test_loop import flat

CRT = {"method": "crt", "unit": "turn", "policy": "regex:customersim", "width": 2, "epochs": 2,
       "epsilon": 3.0, "delta": 1e-4, "vocab_size": 300}  # fmt: skip
SALTED = ("hmac", "id", "issued", "public_key", "signature", "sha256")


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    path = tmp_path_factory.mktemp("talk") / "talk.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0, "paper"), path)
    return path


def home_of(talk, home):
    """The same corpus in a folder of its own, which no other training has read."""
    home.mkdir()
    (home / talk.name).write_bytes(talk.read_bytes())
    return home / talk.name


def certified(model):
    return certify.write_certificate(
        model, model.with_suffix(".html"), secrets_per_person=(), force=True
    )


def unsalted(value):
    """A certificate without what is another in every home."""
    if isinstance(value, dict):
        told = {k: v for k, v in value.items() if k not in SALTED and not k.endswith("_sha256")}
        return {k: unsalted(v) for k, v in told.items()}
    return [unsalted(v) for v in value] if isinstance(value, list) else value


def test_a_session_is_the_training_of_the_command(talk, tmp_path, monkeypatch):
    """Weights bit for bit, the certificate field by field, but for what a script is assumed not
    to have done."""
    ends, values = [], []
    for way in (train_for_command, confide.train, confide.Session):
        home = tmp_path / way.__name__
        monkeypatch.setenv("CRTLIB_REGISTRY", str(home / "registry"))
        text, out = home_of(talk, home), home / "model"
        if way is not confide.Session:
            ends.append(way(text, out=out, repeatable_noise=True, **CRT))
        else:
            with confide.Session(text, out=out, repeatable_noise=True, **CRT) as session:
                losses = [step() for step in session]
                assert len(losses) == len(session) and None in losses
                ends.append(session.close())
        values.append(unsalted(certified(out)))
    weights = [flat(made.run.model) for made in ends]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])
    assert values[1] == values[2]
    (said,) = set(values[1]["assumed"]) - set(values[0]["assumed"])
    values[1]["assumed"].remove(said)
    said = f"; {said}", f"{said}; "
    pages = [json.dumps(value, sort_keys=True) for value in values[:2]]
    assert pages[0] == pages[1].replace(said[0], "").replace(said[1], "")


def test_the_odometer_knows_of_a_step_before_it(talk, tmp_path):
    """What is opened and left has spent nothing; what has begun counts in full, leaves no model,
    and goes on."""
    text, out = home_of(talk, tmp_path / "home"), tmp_path / "model"
    options = {"out": out, "repeatable_noise": True, **CRT}
    ledger = text.with_name("talk.jsonl.odometer")
    with confide.Session(text, **options) as session:
        assert not ledger.exists()
        with pytest.raises(ValueError, match="in use by another training"):
            confide.Session(text, **options)
    assert not ledger.exists() and not (tmp_path / "model.work").exists()
    with confide.Session(text, **options) as session:
        for step in session:
            if step.number > len(session) // 2 + 2:  # a step of the second epoch was taken
                break
            assert ledger.exists() == (step.number > 1)
            step()
            (line,) = odometer.read_entries(ledger)
            assert line.state == "started"
        with pytest.raises(ValueError, match=r"^training: \d+ steps are left"):
            session.close()
    assert not out.exists()
    with confide.Session(text, **options) as again:
        assert 0 < again.training.steps_left < len(again)
        for step in again:
            step()
        rest = again.close()
    assert {e.run for e in odometer.read_entries(ledger)} == {line.run} and out.exists()
    whole = confide.train(home_of(talk, tmp_path / "other"), **options | {"out": None})
    assert torch.equal(flat(rest.run.model), flat(whole.run.model))
    shutil.rmtree(aside := out.with_name("model.work"))
    with pytest.raises(ValueError, match="is a finished model"):
        confide.Session(text, **options)
    assert not aside.exists()


def test_another_training_does_not_go_on_and_says_how_it_was_begun(talk, tmp_path):
    text, out = home_of(talk, tmp_path / "t"), tmp_path / "model"
    options = CRT | {"conservative": "everything", "out": out}
    with pytest.warns(UserWarning, match="left"), confide.Session(text, **options) as session:
        next(iter(session))()
    kept = {p.name: p.read_bytes() for p in out.with_name("model.work").iterdir()}
    told = "delta 0.0001, not 0.001 and epsilon 3.0, not 5.0; use the same options to go on,"
    with pytest.raises(ValueError, match=f"model.work belongs to .* begun with {told} or another"):
        confide.Session(text, **options | {"epsilon": 5.0, "delta": 1e-3})
    jsonl.write_jsonl(customersim.simulate_corpus(20, 1, "paper"), text)
    with pytest.raises(ValueError, match="begun of another text, model or device; use the same"):
        confide.Session(text, **options)
    assert kept == {p.name: p.read_bytes() for p in out.with_name("model.work").iterdir()}
    text.write_bytes(talk.read_bytes())
    with confide.Session(text, **options | {"workers": 1}) as session:
        session.take_all()
        session.close()
    left = {p.name for p in out.with_name("model.work").iterdir()}
    assert out.exists() and not left & {*train_on_corpus.UNFINISHED_FILES}


def test_a_place_that_holds_something_is_called_what_it_is(talk, tmp_path):
    text, screened = home_of(talk, tmp_path / "t"), tmp_path / "screened"
    confide.screen(text, screened, policy="regex:customersim")
    for corpus, told in ((screened, "is an input"), (text, "holds what 'crtlib screen' made")):
        with pytest.raises(ValueError, match=f"^out: {screened} {told}; choose another") as said:
            confide.Session(corpus, **{k: CRT[k] for k in ("method", "epsilon")}, out=screened)
        assert "force" not in str(said.value)
    with pytest.raises(ValueError, match=f"^{screened}: is screened already$"):
        confide.screen(screened, screened)


def test_a_session_whose_first_step_failed_says_that_there_is_nothing_to_end(
    talk, tmp_path, monkeypatch
):
    """Fault: four lines of pydantic, as no step was taken, though one was charged."""
    how = {"method": "dpsgd", "epsilon": 8.0, "epochs": 1, "width": 16, "device": "cpu"}
    session = confide.Session(home_of(talk, tmp_path / "home"), out=tmp_path / "model", **how)
    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError):
        broken.setattr("crtlib.training.phases.set_private_gradient", lambda *_, **__: 1 / 0)
        next(iter(session))()
    with pytest.raises(ValueError, match="no step was taken"):
        session.close(early=True)


def test_what_is_left_early_is_charged_in_full(talk, tmp_path, monkeypatch):
    values = []
    for stop in (3, None):
        monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / str(stop) / "registry"))
        text, out = home_of(talk, tmp_path / str(stop)), tmp_path / str(stop) / "model"
        with confide.Session(text, out=out, **CRT) as session:
            with pytest.raises(ValueError, match="no step was taken"):
                session.close(early=True)
            for step in session:
                step()
                if step.number == stop:
                    break
            made = session.close(early=stop is not None)
        values.append(certified(out))
        assert made.holds and made.run.updates["public"] + made.run.updates["private"] == (
            stop or len(session)
        )
    early, whole = values
    assert early["verdict"] == "holds" and early["guarantee"] == whole["guarantee"]
    told = [d for d in early["declared"] if d not in whole["declared"]]
    assert [(d["of"], d["value"]) for d in told] == [(file_sources.StoppedSource.of, "3")]
    assert math.log2(len(session)) <= told[0]["bits"] <= 1.01 * math.log2(len(session))
    records = [certify.read_certifiable_run(tmp_path / str(n) / "model").record for n in (3, None)]
    private = [[row for row in r["phases"] if row["kind"] == "private"] for r in records]
    assert private[0] == private[1] != []


def test_a_session_that_nobody_closed_is_written_or_says_what_is_left(talk, tmp_path, recwarn):
    """All steps were taken, nothing was raised, and there was no model."""
    text, out = home_of(talk, tmp_path / "home"), tmp_path / "model"
    with confide.Session(text, out=out, **CRT) as session:
        pass  # opened, and nothing spent
    with pytest.raises(KeyError), confide.Session(text, out=out, **CRT) as session:
        next(iter(session))()
        raise KeyError
    assert not recwarn.list and not out.exists()
    with confide.Session(text, out=out, **CRT) as session:
        first = [step() for step, _ in zip(session, range(2), strict=False)]
    (warned,) = recwarn.list
    assert f" {len(session) - len(first)} of {len(session)} steps are left" in str(warned.message)
    assert "the same call goes on" in str(warned.message) and not out.exists()
    with confide.Session(text, out=out, **CRT) as session:
        for step in session:
            step()
    assert session.result.holds and certified(out)["verdict"] == "holds"
    assert len(recwarn.list) == 1


def test_a_weight_that_a_script_moved_leaves_no_model(talk, tmp_path):
    with (
        pytest.raises(ValueError, match="changed outside of a step"),
        confide.Session(home_of(talk, tmp_path / "home"), out=tmp_path / "m", **CRT) as session,
    ):
        for step in session:
            step()
            next(session.model.parameters()).data.mul_(1.01)
        session.close()
    assert not (tmp_path / "m").exists()


def test_with_an_evaluation_no_text_is_held_out(talk, tmp_path):
    other = tmp_path / "evaluation.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(5, 7, "paper"), other)
    options = CRT | {"epochs": 1}
    sizes = []
    for evaluation in (None, other):
        with confide.Session(talk, evaluation=evaluation, **options) as session:
            sizes.append(
                sum(len(d.turns) for d in session._result_in_progress.data.corpus.dialogues)
            )
            heard = {p.text for p in session._result_in_progress.data.test}
            rows = [("test_ppl", 1, 0, 2.0)]
            facts = training_summary.describe_study(
                session._job.conditions.args[0], session._result_in_progress, rows
            )
            assert facts["held_out"] == (evaluation is None)
    every = sum(len(d.turns) for d in jsonl.read_jsonl(talk))
    assert sizes[0] < 0.9 * every and sizes[1] == every
    mine = {turn.text for d in jsonl.read_jsonl(other) for turn in d.turns}
    assert len(heard) == len({text.rpartition(": ")[2] for text in heard}) <= len(mine)
    with pytest.raises(ValueError, match="heldout=0: must be positive"):
        confide.train(talk, study={"heldout": 0}, **options)


def test_an_evaluation_is_of_nobody_who_is_trained_on(talk, tmp_path):
    """The very text that was trained on had a "held-out perplexity"."""
    mine = [*jsonl.read_jsonl(talk)]
    other = tmp_path / "evaluation.jsonl"
    talks = list(customersim.simulate_corpus(5, 7, "paper").dialogues)
    jsonl.write_jsonl([*talks, replace(mine[3], id="another", user="else")], other)
    for evaluation in (talk, other):
        with pytest.raises(ValueError, match=r"evaluation='.*': must be text that is not trained"):
            confide.Session(talk, evaluation=evaluation, **CRT)


@pytest.mark.parametrize("unit", ["turn", "dialogue"])
def test_what_an_evaluation_has_in_common_is_left_out_and_said(unit, talk, tmp_path):
    """Short conversations of which a text is not known again, fewer than half, were trained on, and
    the perplexity was "of other text"."""
    words = ["yes", "no", "thanks", "hello", "that is it", "good", "I am", "well", "bye", "hm"]

    def rows(name, k, n):
        for i in range(n):
            turns = (Turn("USR", f"{words[i]} {k + i}"), Turn("SYS", words[i]))
            yield Dialogue(f"{name}{i}", f"{name}{i}", turns)

    short, path = tmp_path / "short.jsonl", tmp_path / "evaluation.jsonl"
    read, other = [*rows("a", 0, 10)], [*rows("b", 100, 10)]
    jsonl.write_jsonl(Corpus("", (*jsonl.read_jsonl(talk), *read)), short)
    mixed = [replace(d, id=f"c{d.id}", user=f"c{d.user}") for d in read[:4]]
    jsonl.write_jsonl(Corpus("", (*mixed, *other)), path)
    with confide.Session(short, evaluation=path, **CRT | {"unit": unit, "epochs": 1}) as session:
        heard = [p.text for p in session._result_in_progress.data.test]
    assert len(heard) == 10 and not any(f"{d.turns[0].text}" in heard for d in mixed)
    _, said = training_of_study.leave_out_what_is_read(corpora.load_corpus(path), short, unit)
    lines = {
        "turn": "other text: 10 messages; 18 more are left out, as the corpus has them word for "
        "word",
        "dialogue": "other text: 20 messages; 8 more are left out, as the corpus has their whole "
        "conversations word for word; of the rest it has 10",
    }
    assert said == lines[unit]
    jsonl.write_jsonl(Corpus("", tuple(mixed)), path)
    with pytest.raises(ValueError, match="must be text that is not trained on"):
        confide.Session(short, evaluation=path, **CRT | {"unit": unit})


@pytest.mark.parametrize("name", ["split", "dialogues", "nothing"])
def test_a_study_sets_nothing_that_its_corpus_decides(talk, name):
    with pytest.raises(ValueError, match=f"study='{name}': must be a field of CrtStudy, but not"):
        confide.Session(talk, study={name: "order"}, **CRT)


@pytest.mark.nightly
def test_own_optimizers_and_schedules_go_on_where_they_were(talk, tmp_path):
    def adamw(learning):
        return torch.optim.AdamW(learning, lr=1.0, weight_decay=0.1)

    ends = []
    for name, cut in (("whole", None), ("cut", True)):
        text = home_of(talk, tmp_path / name)
        options = {"out": tmp_path / name / "m", "repeatable_noise": True, **CRT}
        for last in (False, True) if cut else (True,):
            with confide.Session(text, optimizer=adamw, **options) as session:
                for step in session:
                    if not last and session.training.phases_done:
                        break
                    step(learning_rate_factor=1 - step.number / (len(session) + 1))
                if last:
                    ends.append(flat(session.close().run.model))
    assert torch.equal(*ends)


def test_a_script_is_named_and_what_is_assumed_of_it(talk, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    text, script = home_of(talk, tmp_path / "home"), file_sources.script_source()
    made = {}
    for name in ("first", "second"):
        with confide.Session(text, out=tmp_path / name, **CRT) as session:
            for step in session:
                step()
            made[name] = session.close()
    train_for_command(text, out=tmp_path / "third", **CRT)
    said = Assumption("script", script.name, script.sha256).sentence()
    assert re.search(r" \(SHA-256 [0-9a-f]{64}\), which took the steps, taught the model", said)
    assert " beside them, kept nothing of one text for the loss of another, let no text" in said
    assert ", and did not change how the model reads" in said
    before = said.partition(", kept nothing of one text")[0]  # as lines of 0.4 say it
    assert f"; assumed: {said}" in made["first"].promise
    values = {name: certified(tmp_path / name) for name in ("first", "second", "third")}
    earlier = said.replace("which took the steps, taught the model nothing of this text",
                           "which took the steps of an earlier model, taught it nothing of this "
                           "text")  # fmt: skip
    scripts = [[x for x in v["assumed"] if "took the steps" in x] for v in values.values()]
    assert scripts == [[said], [said, earlier], [earlier]]
    assert read_assumption(before).of_earlier_model(same_text=True).sentence() == earlier
    page = " ".join((tmp_path / "first.html").read_text().split())
    assert f"It is assumed that {said}" in page and "compared before and after each step" in page
    value = values["first"]
    key = certify.read_certifiable_run(tmp_path / "first").key
    less = {n: v for n, v in value.items() if n not in certificate_pages.UNSEALED_FIELDS}
    less = seal.sign_value(
        certificate_pages.assemble_certificate(less | {"assumed": []}, issued=value["issued"]), key
    )
    fault = verify.find_certificate_fault(tmp_path / "first", less)
    assert fault == "certificate: does not state what is assumed"
    assert script in released_folder.read_release(tmp_path / "first").sources


def write_text(optimizer, *_):
    optimizer.param_groups[0]["params"][0].detach().view(-1)[:2] = torch.tensor([109.0, 121.0])


class CopyingSGD(torch.optim.SGD):
    """An optimizer of a script, which puts a text of its own into the weights."""

    def step(self, closure=None):
        super().step(closure)
        write_text(self)


@pytest.mark.parametrize(
    "way", ["with an optimizer", "by train", "hooked before train", "of the training"]
)
def test_a_script_is_named_whoever_takes_the_steps(way, talk, tmp_path):
    """`optimizer=`, `session.training` or hooks of all optimizers, or layers, wrote what a script
    liked into the weights, and the certificate held and assumed nothing."""
    options = CRT | {"epochs": 1, "out": tmp_path / "m"}
    text = home_of(talk, tmp_path / "home")
    if way in ("with an optimizer", "by train"):
        options["optimizer"] = lambda learning: CopyingSGD(learning, lr=0.1)
    if way == "by train":
        confide.train(text, **options)
    elif way == "hooked before train":
        hook = register_optimizer_step_post_hook(write_text)
        try:
            confide.train(text, **options)
        finally:
            hook.remove()
    else:
        with confide.Session(text, **options) as session:
            if way == "with an optimizer":
                session.take_all()
            else:
                for step in session.training:
                    step()
            session.close()
    script = file_sources.script_source()
    said = Assumption("script", script.name, script.sha256).sentence()
    assert said in certified(tmp_path / "m")["assumed"]


@pytest.mark.parametrize("moved", [False, True])
def test_every_script_that_took_a_step_is_named(moved, talk, tmp_path, monkeypatch):
    """A script took half of the steps, the command the rest: the certificate held and assumed
    nothing."""
    text, first = home_of(talk, tmp_path / "home"), tmp_path / "a" / "m"
    first.parent.mkdir()
    with confide.Session(text, out=first, **CRT) as session:
        script = session.odometer.script
        for step in session:
            if step.number > len(session) // 2 + 2:
                break
            step()
    out = first
    if moved:
        (tmp_path / "a").rename(tmp_path / "b")
        out, script = tmp_path / "b" / "m", file_sources.UNKNOWN_SCRIPT
    for name in ("again.py", "last.py"):  # both go on, and the second one ends it
        (tmp_path / name).write_text(f"# {name}")
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / name))
        with confide.Session(text, out=out, **CRT) as session:
            next(iter(session))()
    train_for_command(text, out=out, **CRT)
    assumed = [x for x in certified(out)["assumed"] if states_kind(x, "script")]
    said = [x for x in assumed if not is_of_earlier_model(x)]
    assert Assumption("script", script.name, script.sha256).sentence() in said and len(said) == 3
    assert {"again.py", "last.py"} < {x.partition(" (")[0] for x in said}


def test_a_training_of_the_command_watches_no_bits(talk, monkeypatch):
    """But before the first and after the last: nobody else's code runs between its steps."""
    seen = []
    honest = Training._seal_model
    monkeypatch.setattr(
        Training, "_seal_model", lambda self: (honest(self), seen.append(self._seal.sums))
    )
    train_on_corpus.train(talk, **CRT | {"epochs": 1})
    assert seen[0] and seen[-1] and seen[1:-1] and not any(seen[1:-1])
