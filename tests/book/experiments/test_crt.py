"""Sweeps: hashing, resuming, killing, other executors, and refusing what is not a store."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pandas as pd
import psutil
import pytest
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as bpe

from confide.training import study_of_text
from crtbook import grids, runner, runs, search, sweeps, tables
from crtbook import settings as settings_studies
from crtbook import study as store_module
from crtbook.study import Store
from crtlib.models import model_folder
from crtlib.screening import regex_policies
from crtlib.studies import crt_study, study_data, study_run
from crtlib.text import corpora, customersim, data_points, jsonl, templates
from crtlib.text.records import Corpus, Dialogue, Turn

TINY = runs.CrtStudy(
    method="sgd",
    model="lstm",
    gamma=0.5,
    seed=0,
    dialogues=20,
    heldout=10,
    epochs=1,
    embedding=16,
    hidden=16,
    canaries=2,
    copies=2,
)
GRID = [replace(TINY, method=m, seed=s) for m in ("sgd", "crt") for s in (0, 1)]
PROVENANCE = ["date", "seconds", "cpu_seconds", "commit"]


def same(a, b):
    sort = ["run", "metric", "epoch", "item"]
    a, b = (t.drop(columns=PROVENANCE).sort_values(sort).reset_index(drop=True) for t in (a, b))
    pd.testing.assert_frame_equal(a, b)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("reference"))
    with ThreadPoolExecutor(1) as executor:
        return runner.sweep(GRID, store, executor=executor, progress=False)


def test_a_second_sweep_runs_nothing_and_any_executor_serves(reference, tmp_path):
    store = Store(tmp_path)
    with ThreadPoolExecutor(1) as executor:
        first = runner.sweep(GRID[:2], store, executor=executor, progress=False)
    written = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.json")}
    assert len(written) == 2
    whole = runner.sweep(GRID, store, workers=1, progress=False)  # its own process
    assert {p: p.stat().st_mtime_ns for p in written} == written
    same(whole, reference)
    same(first, reference[reference.run.isin(first.run)])


def test_the_table_holds_every_measurement_with_its_provenance(reference):
    assert set(reference.method) == {"sgd", "crt"} and set(reference.seed) == {0, 1}
    metrics = {"valid_ppl_words", "test_ppl", "test_ppl_words", "exposure", "n_private"}
    assert metrics <= set(reference.metric)
    assert (reference[reference.metric == "exposure"].groupby("run").size() == 2).all()
    for column in ("profile", "device", "machine", "versions", "date", "seed", "seconds"):
        assert reference[column].notna().all()


def test_kill_9_in_mid_sweep_then_the_same_command(reference, tmp_path):
    """Finished cells are not run again, no half-written file is read, the table is the same."""
    code = (
        "from tests.book.experiments.test_crt import GRID\n"
        "from crtbook import runner, study\n"
        f"runner.sweep(GRID, study.Store({str(tmp_path / 's')!r}), workers=1, progress=False)\n"
    )
    script = tmp_path / "killed.py"
    script.write_text("if __name__ == '__main__':\n    " + code.replace("\n", "\n    "))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, script], env=environment)
    deadline = time.time() + 400
    while not list((tmp_path / "s").glob("*.json")):
        assert process.poll() is None and time.time() < deadline
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=120)
    # No orphan goes on training. One that has ended may wait for init to take note of it.
    assert children and all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in alive)
    done = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").glob("*.json")}
    assert 1 <= len(done) < len(GRID)
    (tmp_path / "s" / ".half.json.x.part").write_text('{"experiment": {')  # what a kill can leave
    store = Store(tmp_path / "s")
    table = runner.sweep(GRID, store, workers=1, progress=False)
    assert {p: p.stat().st_mtime_ns for p in done} == done
    same(table, reference)
    assert not list((tmp_path / "s" / "unfinished").glob("*.pt"))


def test_a_cell_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    e = replace(TINY, epochs=3, method="crt").ready()
    want = study_run.measure_study(e, study_run.fit_study(e))
    calls = []
    honest = study_run.measure_utility

    def dies(*args, **named):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return honest(*args, **named)

    monkeypatch.setattr(study_run, "measure_utility", dies)
    with pytest.raises(KeyboardInterrupt):
        study_run.fit_study(e, checkpoint=tmp_path / "c.pt")
    monkeypatch.setattr(study_run, "measure_utility", honest)
    assert study_run.measure_study(e, study_run.fit_study(e, checkpoint=tmp_path / "c.pt")) == want


def test_keys_name_what_a_run_reads():
    assert TINY.key == replace(TINY, epsilon=1.0).key  # sgd adds no noise
    assert TINY.key != replace(TINY, gamma=0.1).key
    private = replace(TINY, method="dpsgd", noise_multiplier=1.0)
    assert private.key == replace(private, gamma=0.1).key  # raw text knows no gamma
    assert private.key != replace(private, epsilon=1.0).key
    assert private.key == replace(private, epsilon=3).key  # 3 and 3.0


def test_a_store_of_another_version_is_refused(tmp_path):
    (tmp_path / "VERSION").write_text("0\n")
    with pytest.raises(ValueError, match="has version '0', this library reads"):
        Store(tmp_path)
    (tmp_path / "VERSION").unlink()
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match="not a store"):
        Store(tmp_path)


def test_the_guarantee_says_what_it_rests_on():
    e = replace(TINY, method="crt", gamma=0.1, neighbouring_relation="replace")
    guarantee = study_run.fit_study(e).guarantee(e)
    said = str(guarantee)
    for part in (
        "Bayesian confidentiality",
        "unit: one secret in one turn",
        "one data point replaced (antipodal pair, proved the worst)",
        "97.5 % upper bound",
        "treated as public: the rounded number of private points, and the counts of labels",
    ):
        assert part in said
    # 20 dialogues label few secrets: the bound on delta2 is added, not assumed away.
    assert guarantee.delta > 0.01
    assert study_run.fit_study(TINY).guarantee(TINY) is None


def test_planted_canaries_are_no_labels_of_the_corpus():
    d = study_data.prepare_data(replace(TINY, gamma=1.0, canaries=10, copies=20))
    labelled = sum(
        len(t.secrets)
        for t in study_data.split_corpus("customersim", "paper", 20, 10, 0).train.turns()
    )
    assert d.misses("pi").judged_secrets == d.misses("pi").failures == labelled


def unlabelled(tmp_path):
    corpus = customersim.simulate_corpus(40, 0, "paper")
    bare = [
        replace(d, turns=tuple(replace(t, secrets=()) for t in d.turns)) for d in corpus.dialogues
    ]
    jsonl.write_jsonl(bare, tmp_path / "bare.jsonl")
    return str(tmp_path / "bare.jsonl")


def test_without_labels_nothing_is_known(tmp_path):
    """No label: gamma and delta2 may be anything, so the guarantee is void and says so; with
    the policy that flags everything delta2 is 0 by construction."""
    path = unlabelled(tmp_path)
    e = replace(TINY, method="crt", corpus=path, canaries=0)
    guarantee = study_run.fit_study(e).guarantee(e)
    assert guarantee.delta == 1.0 and "gamma = 1 (unknown: no label shows a secret)" in str(
        guarantee
    )
    e = replace(e, conservative="everything")
    guarantee = study_run.fit_study(e).guarantee(e)
    assert guarantee.delta == e.delta and guarantee.gamma.rate == 1.0
    with pytest.raises(ValueError, match="policy='oracle': needs labelled secrets"):
        study_data.prepare_data(replace(e, policy="oracle"))


def test_a_corpus_file_is_known_by_its_content(tmp_path):
    path = unlabelled(tmp_path)
    before = replace(TINY, corpus=path).key
    jsonl.write_jsonl(customersim.simulate_corpus(40, 1, "paper"), path)
    assert replace(TINY, corpus=path).key != before


@pytest.mark.parametrize("k", range(8))
def test_neighbours_share_tokenizer_and_public_part(k, monkeypatch):
    """D against D' through everything that a run reads, the vocabulary included."""
    base = customersim.simulate_corpus(12, 0, "paper")
    places = [
        (i, j, s)
        for i, d in enumerate(base.dialogues)
        for j, t in enumerate(d.turns)
        for s in t.secrets
    ]
    i, j, secret = places[k * len(places) // 8]
    turn = base.dialogues[i].turns[j]
    text = turn.text[: secret.start] + "<MASK>" + turn.text[secret.end :]
    turns = list(base.dialogues[i].turns)
    turns[j] = replace(turn, text=text, secrets=())
    dialogues = list(base.dialogues)
    dialogues[i] = replace(dialogues[i], turns=tuple(turns))
    other = replace(base, dialogues=tuple(dialogues))
    regex = regex_policies.corpus_regex_policy()
    for unit in ("turn", "dialogue"):
        study = replace(TINY, unit=unit, vocab_size=512)
        points = [data_points.make_points(c, unit=unit) for c in (base, other)]
        ours, theirs = (
            study_data._train_tokenizer(
                c, study, templates.SPEAKER_TEMPLATE, some, regex(some), regex
            )
            for c, some in zip((base, other), points, strict=True)
        )
        assert ours.json == theirs.json
    split = study_data.split_corpus("customersim", "paper", 12, 10, 0)
    e = replace(TINY, method="crt", gamma=0.0, dialogues=12, canaries=0)
    read = []
    for corpus in (base, other):
        monkeypatch.setattr(
            study_data, "split_corpus", lambda *_, c=corpus: replace(split, train=c)
        )
        d = study_data.prepare_data(e)
        read.append((d.prepared.public, [p.text for p in d.prepared.private], d.tokenizer.json))
    assert read[0] == read[1]  # gamma = 0: the policy finds the secret, nothing differs


@pytest.mark.parametrize("unit", ["turn", "dialogue"])
def test_the_vocabulary_has_nothing_that_one_policy_finds_or_that_trains_with_noise(tmp_path, unit):
    """ "zyzzyva" is found by pi alone; "xylograph" by nobody, in a dialogue that is private."""
    said = [
        Dialogue(f"d{i}", f"u{i}", (Turn("USR", "I said zyzzyva"), Turn("SYS", "not xylograph")))
        for i in range(20)
    ]
    jsonl.write_jsonl(Corpus("bare", tuple(said)), tmp_path / "c.jsonl")
    for name, pattern in (("pi", "zyzzyva"), ("pi_c", "quagga")):
        (tmp_path / f"{name}.toml").write_text(f"[word]\npattern = '{pattern}'\n")
    found = {"policy": f"regex:{tmp_path}/pi.toml", "conservative": f"regex:{tmp_path}/pi_c.toml"}
    study = study_of_text.build_study(tmp_path / "c.jsonl", method="crt", unit=unit, **found)
    words = study_data.prepare_data(study, public_words=True).tokenizer.json
    assert "zyzz" not in words and ("xylo" in words) == (unit == "turn")


def test_a_saved_model_scores_as_before(tmp_path):
    fitted = study_run.fit_study(TINY)
    runs.save_run(fitted.run, fitted.data.tokenizer, fitted.spec, tmp_path)
    model, tokenizer = model_folder.load_model(tmp_path)
    texts = fitted.data.test
    assert study_run.measure_utility(model, tokenizer, texts) == study_run.measure_utility(
        fitted.run.model, fitted.data.tokenizer, texts
    )


def test_every_method_gets_the_same_number_of_trials():
    settings = settings_studies.read_parameters({"profile": "laptop"}, "tuning")
    grid = grids.tuning_grid(settings)
    started = pd.Series([e.method for e in grid if e.init != "random"]).value_counts()
    assert set(started.index) == set(grids.STARTED) and set(started) == {settings.public_trials}
    grid = [e for e in grid if e.init == "random"]
    count = pd.Series([(e.corpus, e.method, e.model) for e in grid]).value_counts()
    assert {c for c, _, _ in count.index} == {"customersim", "schema_guided"}
    assert all(settings.data[c].trials == n for (c, _, _), n in count.items())
    simulated = [replace_sigma(e) for e in grid if e.corpus == "customersim"]
    assert len({e.key for e in simulated}) == len(simulated)
    figures = settings_studies.load_settings("crt", "laptop")
    assert crt_study.TUNING_SEED not in range(figures.seeds)


@pytest.fixture
def fifty_dialogues(monkeypatch):
    """A named corpus of fifty dialogues of fifty people, in place of MultiWOZ."""
    drawn = corpora.load_corpus("customersim", limit=50)
    people = tuple(replace(d, user=f"u{k}") for k, d in enumerate(drawn.dialogues))
    whole = replace(drawn, dialogues=people)
    monkeypatch.setattr(study_data, "_load_corpus_cached", lambda name: whole)
    study_data.split_corpus.cache_clear()
    yield "multiwoz"
    study_data.split_corpus.cache_clear()


def test_the_search_reads_its_own_block_and_no_run_does(fifty_dialogues):
    """Runs may be larger than the search; neither reads what taught the policy."""
    split = functools.partial(study_data.split_corpus, fifty_dialogues, "paper", search_block=12)

    def people(parts):
        return {d.user for part in (parts.train, parts.valid, parts.test) for d in part.dialogues}

    searched = split(8, 2, crt_study.TUNING_SEED, 5)
    assert len(people(searched)) == 12
    for seed in (0, 1):
        run = split(25, 4, seed, 5)
        assert len(people(run)) == 33
        assert not people(run) & people(searched)
        assert not people(run) & {d.user for d in run.labelled.dialogues}
    with pytest.raises(ValueError, match="search_block=12: must be at least 14, which the search"):
        split(10, 2, crt_study.TUNING_SEED, 5)
    with pytest.raises(ValueError, match="dialogues=26: with 8 held out, 5 labelled and 12 for"):
        split(26, 4, 0, 5)
    with pytest.raises(ValueError, match="search_block=3: must be 0 where the corpus is simulated"):
        study_data.split_corpus("customersim", "paper", 4, 2, 0, search_block=3)


def replace_sigma(e):
    return replace(e, noise_multiplier=1.0)


@pytest.mark.parametrize("method", ["sgd", "dpsgd", "crt", "dedup", "crt_sigma0"])
@pytest.mark.parametrize("model", ["lstm", "gpt2"])
def test_the_choice_is_the_best_recorded_trial(method, model):
    chosen = search.choose_trial(method, model)
    table = tables.load_recorded("tuning")
    table = table[(table.method == method) & (table.model == model) & (table.init == "random")]
    table = table[(table.metric == "valid_ppl_words") & (table.corpus == "customersim")]
    last = table[table.epoch == table.epoch.max()]
    best = last[last.value == last.value.min()].iloc[0]
    assert all(best[name] == value for name, value in chosen.items())
    assert json.dumps(chosen)  # plain numbers, so that they can name a run


def test_a_new_measurement_scores_the_kept_model_and_trains_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    with ThreadPoolExecutor(1) as executor:
        first = runner.sweep(GRID[2:3], store, executor=executor, progress=False)
        monkeypatch.setattr(store_module, "MEASUREMENTS", store_module.MEASUREMENTS + 1)
        monkeypatch.setattr(study_run, "train_model", lambda *_, **__: pytest.fail("trained again"))
        assert not store.has(first.run[0])
        again = runner.sweep(GRID[2:3], store, executor=executor, progress=False)
        assert store.has(first.run[0])
    same(first, again)


def test_selective_reads_raw_text_with_flags_of_the_policy():
    e = replace(TINY, method="selective", gamma=1.0, policy="oracle").ready()
    fitted = study_run.fit_study(e)
    assert fitted.run.updates["private"] == 0  # nothing is found, so nothing is private
    found = study_run.fit_study(replace(e, gamma=0.0))
    assert found.run.updates["private"] > 0
    assert "<MASK>" not in "".join(p.text for p in found.data.prepared.all)
    said = study_run.fit_study(e).guarantee(e)
    assert said.epsilon == float("inf")
    with pytest.raises(ValueError, match="model='gpt2': S-DP protects the state of an lstm"):
        replace(e, model="gpt2")


def test_a_pretrained_folder_brings_its_weights_and_vocabulary(tmp_path):
    """A GPT-2 as the hub would deliver it, made here: trained further, saved and loaded again."""
    texts = [f"{t.speaker}: {t.text}" for t in customersim.simulate_corpus(30, 7, "paper").turns()]
    plain = Tokenizer(bpe.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = {"special_tokens": ["<|endoftext|>"], "show_progress": False}
    plain.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, **special)
    )
    plain.save(str(tmp_path / "tokenizer.json"))
    config = transformers.GPT2Config(
        vocab_size=plain.get_vocab_size(), n_embd=16, n_layer=1, n_head=2, n_positions=128
    )
    given = transformers.GPT2LMHeadModel(config)
    given.save_pretrained(tmp_path)
    e = replace(TINY, method="crt", model="gpt2", init=str(tmp_path))
    e = replace(e, hidden=64).ready()  # the folder's shape counts, not this
    fitted = study_run.fit_study(e)
    tokenizer = fitted.data.tokenizer
    assert (
        fitted.run.model.config.n_embd == 16 and tokenizer.vocab_size == plain.get_vocab_size() + 3
    )
    ids = tokenizer.encode(["USR: my ID is: 4217 <MASK>"])[0]
    assert [i for i in ids if i in tokenizer.digits] == [tokenizer.digits[int(d)] for d in "4217"]
    assert ids[0] == tokenizer.bos and ids[-2:] == [tokenizer.mask, tokenizer.eos]
    runs.save_run(fitted.run, fitted.data.tokenizer, fitted.spec, tmp_path / "kept")
    again = runs.restore_training(e, tmp_path / "kept")
    assert study_run.measure_study(e, again) == study_run.measure_study(e, fitted)
    with pytest.raises(ValueError, match=r"model='lstm': init=.* is a gpt2"):
        study_run.fit_study(replace(e, model="lstm"))
    other = replace(e, init=str(tmp_path / "kept"))
    assert other.key != e.key


def test_a_private_corpus_is_no_public_start():
    with pytest.raises(ValueError, match="init='schema_guided': is the private corpus itself"):
        replace(TINY, corpus="schema_guided", init="schema_guided", init_epochs=1)


def test_a_policy_that_learned_is_judged_on_held_out_labels():
    e = replace(TINY, method="crt", policy="tagger", conservative="tagger", labelled=30)
    d = study_data.prepare_data(e)
    trained = {p.text for p in d.points}
    judged = {p.id for p in d.judged.points}
    assert d.misses("pi").judged_secrets == sum(len(p.secrets) for p in d.judged.points) > 0
    assert judged.isdisjoint(p.id for p in d.points) and trained
    for name in ("tagger:folder", "ner:x", "presidio"):
        assert replace(e, policy=name).learned
    assert not replace(e, policy="regex", conservative="everything").learned


def test_raw_and_redacted_text_are_scored_on_the_same_words():
    """What DP-SGD reads and what CRT reads have the same tokens outside secrets and masks."""
    raw, redacted = (study_data.prepare_data(replace(TINY, method=m)) for m in ("dpsgd", "sgd"))
    state = []
    for d in (raw, redacted):
        ids, marks = d.tokenizer.encode_marked(d.test)
        words = [
            [i for i, m in zip(*row, strict=True) if not m] for row in zip(ids, marks, strict=True)
        ]
        state.append(sum(len(w) * n for w, n in zip(words, d.test.values(), strict=True)))
    assert state[0] == state[1] > 0


def test_a_model_that_diverged_does_not_stop_the_sweep():
    fitted = study_run.fit_study(TINY)
    for p in fitted.run.model.parameters():
        p.data.fill_(float("nan"))
    rows = {name: value for name, _, _, value in study_run.measure_study(TINY, fitted)}
    assert rows["test_acc_words"] == 0 and "exposure" not in rows and "mia_accuracy" not in rows


def test_the_arm_of_the_authors_differs_in_its_key_and_what_is_stored_stays_found():
    few = settings_studies.load_settings("utility", "quick", seeds=1, models=["lstm"])
    arm = {study.method: study for study in grids.authors_grid(few)}
    assert (arm["sgd"].learning_rate, arm["sgd"].optimizer, arm["crt"].epochs) == (20.0, "sgd", 100)
    base = runs.CrtStudy(method="sgd", model="lstm", gamma=0.0, seed=0)
    assert replace(base, optimizer="adam").key == base.key != replace(base, optimizer="sgd").key


def test_corpora_that_are_not_here_are_named_and_left_out(monkeypatch):
    monkeypatch.delenv("CRTLIB_DATA", raising=False)
    both = settings_studies.load_settings("crt", "quick", corpora=["customersim", "schema_guided"])
    here, lacks = grids.select_corpora_at_hand(both)
    assert here.corpora == ("customersim",) and "is not here" in lacks["schema_guided"]


def test_a_dry_run_says_hours_memory_and_what_lacks(monkeypatch, tmp_path):
    monkeypatch.delenv("CRTLIB_DATA", raising=False)
    table = sweeps.forecast_runs(sweeps.make_studies("authors", "paper", {}), Store(tmp_path))
    table = table.set_index(["corpus", "model"])
    assert table.hours["customersim", "gpt2"] > 1 and table.memory["customersim", "lstm"] > 1
    assert table.missing["wikitext2", "lstm"] == 0 and table.lacks["wikitext2", "lstm"]
