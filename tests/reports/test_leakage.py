"""The report's files: nothing in clear unless asked for, complete, offline, and good errors."""

import hashlib
import json
import re
import shutil
import sqlite3
import stat
import sys
import tracemalloc
from dataclasses import asdict

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from safetensors.torch import save_model
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from confide import __main__ as cli
from confide import odometer
from confide.reports import bands, leakage_page, leakage_scoring, leakage_tables
from confide.reports.leakage import make_leakage_report
from confide.reports.leakage_tables import ReportCover
from crtbook.leakage import make_trainer
from crtlib.attacks import leakage
from crtlib.models import model_folder, scoring
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.text import canaries, corpora, customersim, data_points, jsonl
from crtlib.text import tokenizer as tokenizer_module
from crtlib.text.records import Corpus, Dialogue, Secret, Turn
from crtlib.text.tokenizer import load_tokenizer, train_bpe
from crtlib.training import schedules

SECRETS = canaries.make_canaries(2, seed=3)
OWNERS = [f"owner-{name}@example.com" for name in ("ada", "bob")]


def corpus():
    """Two people with a number each, said many times; their ids are secret as well."""
    said = [
        Dialogue(f"chat-{OWNERS[k]}-{i}", OWNERS[k],
                 (Turn("USR", f"My ID is: {s}", (Secret("id", 10, 16),)),))
        for k, s in enumerate(SECRETS) for i in range(25)
    ]  # fmt: skip
    return Corpus("c", (*customersim.simulate_corpus(6, 0, "paper").dialogues, *said))


def save(model, shape, tokenizer, folder):
    folder.mkdir()
    save_model(model, str(folder / "model.safetensors"))
    tokenizer.save(folder / "tokenizer.json")
    (folder / "model.json").write_text(json.dumps(asdict(shape)))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a model that has memorised both numbers, a public one, and the corpus."""
    home = tmp_path_factory.mktemp("home")
    jsonl.write_jsonl(corpus(), home / "c.jsonl")
    points = data_points.make_points(corpus(), unit="turn")
    bpe = train_bpe([p.text for p in points if not p.secrets], vocab_size=280)
    shape = ModelSpec("lstm", vocab_size=bpe.vocab_size, embedding=32, hidden=64)
    plan = schedules.sgd_phases(epochs=16, batch_size=16, learning_rate=1e-2)
    trained = make_trainer(shape, bpe, plan, seed=0)(points)
    save(trained, shape, bpe, home / "model")
    save(build_model(shape, 1), shape, bpe, home / "public")
    return home


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*args):
        monkeypatch.setattr(sys, "argv", ["crtlib", "report", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


def everything(folder):
    """All that can be read in a folder, Parquet unpacked: names, columns, cells."""
    parts = [p.name for p in folder.iterdir()]
    for path in folder.iterdir():
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
            parts.append(json.dumps(table.to_pylist(), default=str))
            parts.append(str(table.schema.to_string(show_schema_metadata=True)))
        else:
            parts.append(path.read_text())
    return "\n".join(parts)


PRIVATE = [*SECRETS, *(" ".join(s) for s in SECRETS), *OWNERS, "My ID is"]


def test_text_is_there_when_asked_for(run, home, tmp_path):
    code, out, _ = run(
        home / "model", "--corpus", home / "c.jsonl", "--top-k", 3, "--public", home / "public",
        "--threshold", 2, "--reveal", "--out", tmp_path / "r",
    )  # fmt: skip
    assert code == 0 and "report.html" in out
    assert not any(s in out for s in PRIVATE)  # what is printed is never text
    told = everything(tmp_path / "r")
    # Else the searches of the next test would find nothing, whatever was written.
    assert all(s in told for s in [*SECRETS, *OWNERS, "My ID is"])


@pytest.mark.parametrize("options", [[], ["--lengths-only"], ["--verbatim"], ["--min-length", 3]])
@pytest.mark.parametrize("k", [1, 3])
def test_nothing_is_in_clear_by_default(run, home, tmp_path, options, k):
    out = tmp_path / "r"
    code, said, _ = run(home / "model", "--corpus", home / "c.jsonl", "--top-k", k, *options,
                        "--public", home / "public", "--out", out)  # fmt: skip
    assert code == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "crtlib.json", "report.html", "report.json", "runs.parquet", "sequences.parquet",
    ]  # fmt: skip
    assert hashlib.sha256((home / "c.jsonl").read_bytes()).hexdigest() not in everything(out)
    told = said + everything(out)
    assert not [s for s in PRIVATE if s in told]
    words = {w for t in corpus().turns() for v in t.values() for w in re.findall(r"\w{4,}", v)}
    assert not [w for w in words if re.search(rf"(?<![\w.]){re.escape(w)}(?!\w)", told)]
    if options == ["--lengths-only"]:
        tables = [pd.read_parquet(out / f"{n}.parquet") for n in ("runs", "sequences")]
        assert all(set(t.by) <= {"tokens", "perplexity", "ratio"} for t in tables)
        assert all(list(t) == ["by", "group", "at_least", "at_most"] for t in tables)


def test_numbers_on_all_files_agree(run, home, tmp_path):
    run(home / "model", "--corpus", home / "c.jsonl", "--top-k", 3, "--public", home / "public",
        "--threshold", 2, "--reveal", "--out", tmp_path)  # fmt: skip
    said = json.loads((tmp_path / "report.json").read_text())
    table, long = (pd.read_parquet(tmp_path / f"{n}.parquet") for n in ("sequences", "runs"))
    facts = said["summary"]
    assert facts["runs"] == len(long) == table.total_in_s.sum() > 0
    assert facts["sequences"] == len(table) == said["shown"]
    alone = table[table.users_in_d == 1]
    assert facts["unique"] == len(alone) > 0
    assert facts["unique_above"] == (alone.ratio >= 2).sum()
    assert facts["leakage_epsilon"] == pytest.approx(alone.ratio.max(), rel=1e-3)
    assert (long.groupby("sequence").size() == table.set_index("sequence").total_in_s).all()
    # The two numbers are whole in the sequences of their owners, and labelled so.
    whole = table[[("id" in k) for k in table.kinds]]
    assert len(whole) >= 2 and (whole.users_in_d == 1).all()
    page = (tmp_path / "report.html").read_text()
    embedded = re.search(r'id="data">(.*?)</script>', page, re.S).group(1)
    embedded = json.loads(embedded)
    assert len(embedded) == len(table)
    for row in embedded:  # the three numbers of a row belong to one run
        assert row["public"] / row["perplexity"] == pytest.approx(row["ratio"], rel=2e-3)
    assert f"<b>{len(alone):,}</b><span>unique</span>" in page


def test_the_bins_of_a_redacted_report_hold_the_exact_numbers(run, home, tmp_path):
    options = [home / "model", "--corpus", home / "c.jsonl", "--public", home / "public"]
    for name, more in (("clear", ["--reveal"]), ("bins", [])):
        run(*options, *more, "--threshold", 2, "--out", tmp_path / name)
    exact = pd.read_parquet(tmp_path / "clear" / "sequences.parquet")
    said = json.loads((tmp_path / "bins" / "report.json").read_text())
    table = pd.read_parquet(tmp_path / "bins" / "sequences.parquet")
    assert said["groups"] == table.to_dict("records") and (table.at_least >= 5).sum() >= 5
    tokens = table[table.by == "tokens"].set_index("group")
    assert len(tokens) >= 2
    for name, row in tokens.iterrows():
        low, _, high = name.removesuffix(" or more").partition(" to ")
        some = exact[exact.length.between(int(low), int(high or (low, 10**9)["more" in name]))]
        if row.at_least:  # a bin of fewer than five users counts as small, whatever it holds
            assert row.at_least <= len(some) <= row.at_most
            one = (some.users_in_d == 1).sum()
            assert row.one_user_at_least <= one <= row.one_user_at_most
    unique = (exact.users_in_d == 1).sum()
    assert said["summary"]["unique"] == bands.band_in_words(bands.count_band(unique))
    above = exact.ratio >= said["summary"][leakage_tables.REACHED_RATIO_FIELD]
    assert exact[above & (exact.users_in_d == 1)].users.explode().nunique() >= 5
    # Only two people have an id: whether it is completed is theirs, and no bin says so.
    assert (tokens.at_least % 5 == 0).all()
    assert table.set_index("group").at_least["id"] == 0


def test_what_stands_in_clear_is_private_and_what_is_redacted_is_not(run, home, tmp_path):
    for name, more, mode in (("bins", [], 0o644), ("clear", ["--reveal"], 0o600)):
        run(home / "model", "--corpus", home / "c.jsonl", *more, "--out", tmp_path / name)
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / name).iterdir()}
        assert len(modes) == 5 and set(modes.values()) == {mode}


def test_a_report_is_made_once_and_replaced_with_force_only(run, home, tmp_path):
    made = [home / "model", "--corpus", home / "c.jsonl", "--out", tmp_path / "r", "--json"]
    code, out, _ = run(*made)
    again = run(*made)
    assert code == again[0] == 0 and json.loads(out) == json.loads(again[1])
    code, _, err = run(*made[:-1], "--top-k", 1)
    assert code == 2 and "holds what 'crtlib report' made" in err
    assert run(*made[:-1], "--top-k", 1, "--force")[0] == 0
    assert json.loads((tmp_path / "r/report.json").read_text())["summary"]["top_k"] == 1
    for out in (home, home / "model"):
        code, _, err = run(*made[:3], "--out", out, "--force")
        assert code == 2 and err.startswith(f"crtlib: error: --out: {out} ")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".r.key", "r"]


def test_a_second_report_of_a_model_is_forced_and_says_so(run, home, tmp_path):
    """Redacted reports with --top-k 1, 2 and 3 together left one candidate of 1,501; one left 8."""
    words = [home / "model", "--corpus", home / "c.jsonl", "--out"]

    def told(name):
        return json.loads((tmp_path / name / "report.json").read_text())["summary"]["report"]

    assert run(*words, tmp_path / "one")[0] == 0 and told("one") == 1
    assert run(*words, tmp_path / "same")[0] == 0 and told("same") == 1  # it tells nothing new
    assert run(*words, tmp_path / "clear", "--reveal", "--top-k", 2)[0] == 0  # it is not shown
    assert told("clear") == 1
    code, _, err = run(*words, tmp_path / "two", "--top-k", 1)
    assert code == 2 and "was reported on this text before" in err and err.count("\n") == 1
    assert not (tmp_path / "two").exists()
    with (tmp_path / "more.jsonl").open("w") as file:  # one message more is the same people's text
        file.write((home / "c.jsonl").read_text())
        file.write('{"id": "x", "user": "x", "turns": [{"speaker": "USR", "text": "hello"}]}\n')
    code, _, err = run(home / "model", "--corpus", tmp_path / "more.jsonl", "--out", tmp_path / "x")
    assert code == 2 and "was reported on this text before" in err
    assert run(*words, tmp_path / "two", "--top-k", 1, "--force")[0] == 0 and told("two") == 2
    pages = [(tmp_path / name / "report.html").read_text() for name in ("one", "two")]
    assert "Report 2 of this model" not in pages[0] and "Report 2 of this model" in pages[1]


def test_a_report_on_what_the_model_never_read_says_so(home, tmp_path, monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["crtlib", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
        return capsys.readouterr()

    jsonl.write_jsonl(customersim.simulate_corpus(12, 5), tmp_path / "other.jsonl")
    small = ["--method", "sgd", "--epochs", 1, "--width", 4, "--out"]
    jsonl.write_jsonl(customersim.simulate_corpus(20, 6), tmp_path / "own.jsonl")
    call("train", tmp_path / "own.jsonl", *small, tmp_path / "m")
    for name, text in (("own", tmp_path / "own.jsonl"), ("other", tmp_path / "other.jsonl")):
        said = call("report", tmp_path / "m", "--corpus", text, "--out", tmp_path / f"r-{name}")
        page = (tmp_path / f"r-{name}" / "report.html").read_text()
        for shown in (said.err, page):
            assert ("was trained on another text" in shown) == (name == "other")
    call("report", home / "model", "--corpus", home / "c.jsonl", "--out", tmp_path / "r")
    assert "no run of this model is known here" in (tmp_path / "r" / "report.html").read_text()


# --------------------------------------------------------------------------- the attacker
CANDIDATES = 3_000
CARRIER = "My account number is {}, please check it."


def with_number(number, others):
    turn = Turn("USR", CARRIER.format(number), (Secret("id", 21, 27),))
    return Corpus("c", (*others, Dialogue("v", "victim", (turn,))))


def numbers(folder):
    """Every number in a folder of reports, at four digits."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", everything(folder))
    return {f"{float(x):.4g}" for x in re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text)}


def ranks_of_the_truth(folders, truths, candidates, guesses):
    """How many candidates look at least as likely as the truth to one who has the model: each is
    scored by how many of its runs' perplexities stand in the files."""
    out = []
    for folder, truth in zip(folders, truths, strict=True):
        known = numbers(folder)
        fits = np.array([sum(p in known for p in guess) for guess in guesses])
        out.append(int((fits >= fits[candidates.index(truth)]).sum()))
    return out


def test_a_killed_report_scores_no_shard_twice(home, tmp_path, monkeypatch):
    honest, scored = leakage_scoring._score_texts, []

    def score(network, device, texts):
        if len(scored) == kill:
            raise KeyboardInterrupt
        scored.append(texts[0])
        return honest(network, device, texts)

    monkeypatch.setattr(scoring, "MAX_BATCH_TOKENS", 300)
    monkeypatch.setattr(leakage_scoring, "_score_texts", score)
    kill, make = 2, make_leakage_report
    words = home / "model", home / "c.jsonl"
    with pytest.raises(KeyboardInterrupt):
        make(*words, tmp_path / "r", reveal=True, template="speaker")
    kill = -1
    make(*words, tmp_path / "r", reveal=True, template="speaker")
    assert len(scored) == len({tuple(text) for text in scored}) > 3
    make(*words, tmp_path / "whole", reveal=True, template="speaker")
    tables = [(tmp_path / name / "sequences.parquet").read_bytes() for name in ("r", "whole")]
    assert tables[0] == tables[1] and not (tmp_path / ".r.shards").exists()


LOTS = [[], ["--public", "PUBLIC"], ["--prefix-scan"], ["--unit", "dialogue"], ["--unit", "user"]]


@pytest.mark.parametrize("more", LOTS)
def test_a_corpus_in_many_lots_has_the_report_of_one(run, home, tmp_path, monkeypatch, more):
    nothing = Dialogue("nothing", OWNERS[0], tuple(Turn("", "") for _ in range(40)))
    every = Corpus("c", (*corpus().dialogues[:9], nothing, *corpus().dialogues[9:]))
    jsonl.write_jsonl(every, tmp_path / "c.jsonl")
    more = [str(home / "public") if word == "PUBLIC" else word for word in more]
    lots, read = [], leakage_scoring.LotReader._lot
    monkeypatch.setattr(
        leakage_scoring.LotReader,
        "_lot",
        lambda self, some: lots.append(len(some)) or read(self, some),
    )
    told = {}
    for size, workers in ((2**13, 1), (40, 1), (40, 2)):
        monkeypatch.setattr(leakage_scoring, "TURNS_PER_LOT", size)
        out = tmp_path / f"{size}-{workers}"
        code, _, err = run(home / "model", "--corpus", tmp_path / "c.jsonl", *more, "--reveal",
                           "--workers", workers, "--out", out)  # fmt: skip
        assert code == 0, err
        summary = json.loads((out / "report.json").read_text())["summary"]
        read_back = (pd.read_parquet(out / f"{name}.parquet") for name in ("sequences", "runs"))
        told[size, workers] = (summary, *read_back)
    people = len({d.user for d in every.dialogues})
    assert lots[0] == (people if "user" in more else len(every))
    assert len(lots) > 5 and sum(lots) == 3 * lots[0]
    (said, sequences, runs), (said_many, *many), (said_spread, *spread) = told.values()
    assert said_many == said_spread
    ratio = said.pop("leakage_epsilon")
    assert said_many.pop("leakage_epsilon") == (ratio and pytest.approx(ratio, rel=1e-3))
    assert said_many == said
    for cut, same in zip(many, spread, strict=True):
        pd.testing.assert_frame_equal(cut, same)

    def sorted_by(table, *names):  # a number of the last digit may decide about the order
        rows = table.sort_values([*names], kind="stable").drop(columns="sequence")
        return rows.reset_index(drop=True)

    pd.testing.assert_frame_equal(
        sorted_by(sequences, "text"), sorted_by(many[0], "text"), rtol=1e-3
    )
    where = ("document", "context_length")
    pd.testing.assert_frame_equal(sorted_by(runs, *where), sorted_by(many[1], *where), rtol=1e-3)


@pytest.mark.parametrize("fault", [{"user": ""}, {"turns": [{"speaker": "EVE", "text": "BAD"}]}])
def test_what_a_late_text_lacks_is_said_before_the_first_is_scored(
    run, home, tmp_path, monkeypatch, fault
):
    monkeypatch.setattr(leakage_scoring, "TURNS_PER_LOT", 40)
    monkeypatch.setattr(leakage_scoring, "_score_texts", lambda *_: pytest.fail("was scored"))
    said = [json.loads(line) for line in (home / "c.jsonl").read_text().splitlines()] * 9
    said[-2] = {**said[-2], **fault}  # the check of the template reads the first and the last
    lines = (json.dumps({**d, "id": str(i)}) + "\n" for i, d in enumerate(said))
    (tmp_path / "c.jsonl").write_text("".join(lines))
    (tmp_path / "t.j2").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if messages[0].speaker not in ('USR', 'SYS') %}{{ raise_exception('no') }}{% endif %}"
    )
    code, out, err = run(home / "model", "--corpus", tmp_path / "c.jsonl", "--out", tmp_path / "r",
                         "--template", tmp_path / "t.j2")  # fmt: skip
    assert code == 2 and err.count("\n") == 1 and "BAD" not in out + err
    assert ("user" if "user" in fault else "template=t.j2") in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.jsonl", "t.j2"]


@pytest.mark.parametrize("table", ["known", "attacks"])
def test_a_damaged_ledger_is_refused_before_a_text_is_scored(
    run, home, tmp_path, monkeypatch, table
):
    """It was found at the end of hours, as the report was entered there."""
    monkeypatch.setattr(leakage_scoring, "_score_texts", lambda *_: pytest.fail("was scored"))
    corpus, ledger = tmp_path / "c.jsonl", tmp_path / "c.jsonl.odometer" / "ledger.sqlite"
    shutil.copy(home / "c.jsonl", corpus)
    odometer.prepare_odometer(ledger.parent, corpora.hash_corpus(corpus))
    odometer.add_entry(
        ledger.parent, corpus=corpora.hash_corpus(corpus), run="a", state="started",
        method="sgd", unit="turn", relation="replace", screening="", gamma=0.0, delta2=0.0,
        events=None, holds={}, void=(),
    )  # fmt: skip
    with sqlite3.connect(ledger) as base:
        base.executescript(f"DROP TABLE {table}; CREATE TABLE {table} (x)")
    code, out, err = run(home / "model", "--corpus", corpus, "--out", tmp_path / "r")
    assert (code, out) == (3, "") and err.count("\n") == 1 and "is damaged" in err, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "c.jsonl.odometer"]


def test_a_corpus_that_changes_meanwhile_is_not_reported(run, home, tmp_path, monkeypatch):
    text = (home / "c.jsonl").read_text()
    (tmp_path / "c.jsonl").write_text(text)
    write = leakage_page.write_report_files

    def wrote(*args, **kwargs):
        (tmp_path / "c.jsonl").write_text(text.splitlines()[0] + "\n")
        return write(*args, **kwargs)

    monkeypatch.setattr(leakage_page, "write_report_files", wrote)
    code, _, err = run(home / "model", "--corpus", tmp_path / "c.jsonl", "--out", tmp_path / "r")
    assert code == 3 and "changed while it was read" in err and err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_what_is_read_is_not_held(home):
    bpe = load_tokenizer(home / "model" / "tokenizer.json")
    points = data_points.make_points(customersim.simulate_corpus(400, 0, "paper"), unit="turn")
    documents = leakage.tokenise_documents(points, bpe)
    unlabelled = [d._replace(secrets=()) for d in documents]
    tracemalloc.start()
    texts = leakage.DocumentStore()
    for i in range(0, len(documents), 100):
        texts.extend(unlabelled[i : i + 100])
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 60 * len(documents) + 300 * 400  # and the names of 400 people
    assert list(texts) == unlabelled and texts[-3] == unlabelled[-3]
    labelled = leakage.DocumentStore()
    labelled.extend(documents)
    assert list(labelled) == list(documents)


def test_a_redacted_report_is_no_oracle(home, tmp_path):
    """Whoever has the model and three thousand candidates for a number gets no further than the
    prior: the number need not be memorised for the perplexity of the words after it to name it."""
    network, bpe = model_folder.load_model(home / "model")
    rng = np.random.default_rng(0)
    candidates = [f"{v:06d}" for v in rng.choice(10**6, CANDIDATES, replace=False)]
    turns = [Turn("USR", CARRIER.format(c)) for c in candidates]
    trial = Corpus("t", tuple(Dialogue(str(i), "v", (t,)) for i, t in enumerate(turns)))
    texts = leakage.tokenise_documents(data_points.make_points(trial, unit="turn"), bpe)
    runs = leakage.find_runs(texts, leakage.score_documents(network, texts, bos=bpe.bos), k=3)
    guesses = [set() for _ in candidates]
    for i, perplexity in zip(runs["index"], runs.perplexity, strict=True):
        guesses[i].add(f"{perplexity:.4g}")
    others = customersim.simulate_corpus(12, 5, "paper").dialogues
    cover = ReportCover("m", "c", "turn")
    redacted, clear, truths = [], [], candidates[:6]
    for truth in truths:
        points = data_points.make_points(with_number(truth, others), unit="turn")
        report = leakage.measure_leakage(network, bpe, points, k=3)
        redacted.append(
            leakage_page.write_report_files(report, tmp_path / "r" / truth, cover).parent
        )
        # The control: numbers in full beside each other, and no text.
        masked = leakage_page.write_report_files(
            report, tmp_path / "c" / truth, cover, decode=lambda _: ""
        )
        clear.append(masked.parent)
    seen = sorted(ranks_of_the_truth(clear, truths, candidates, guesses))
    assert seen[2] <= 10 and seen[-1] <= CANDIDATES / 50, "the attacker finds it where it stands"
    assert ranks_of_the_truth(redacted, truths, candidates, guesses) == [CANDIDATES] * len(truths)


def test_even_one_who_knows_every_other_text_learns_little(home):
    """She can rebuild the report for each candidate: most of them give the same report, byte for
    byte, as the true number."""
    network, bpe = model_folder.load_model(home / "model")
    others, cover = (
        customersim.simulate_corpus(60, 5, "paper").dialogues,
        ReportCover("m", "c", "turn"),
    )

    def redacted(number):
        points = data_points.make_points(with_number(number, others), unit="turn")
        report = leakage.measure_leakage(network, bpe, points, k=3)
        tables = leakage_tables.group_sequences(report, cover), leakage_tables.group_runs(report)
        page = leakage_page.render_leakage_page(report, cover)
        return page, [t.to_json() for t in tables], leakage_tables.summarise_report(report, cover)

    rng = np.random.default_rng(1)
    truth, *rest = (f"{v:06d}" for v in rng.integers(0, 10**6, 9))
    shown = redacted(truth)
    same = sum(redacted(number) == shown for number in rest)
    assert same >= 4  # half of them: she learns about one of the 13 bits of 10^4 candidates


def test_the_page_needs_no_network(run, home, tmp_path):
    run(home / "model", "--corpus", home / "c.jsonl", "--out", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|src=", page)
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page


def test_text_cannot_run_as_code():
    """A document that closes the script is data on the page, and nothing else."""
    nasty = "</script><script>alert(1)</script>"
    said = (leakage.Document("ann", "a", [0, 1]),)
    scores = leakage.TokenScores([np.zeros(2)], [np.zeros(2, dtype=int)])
    runs = leakage.find_runs(said, scores, k=1)
    found = leakage.LeakageReport(
        said, scores, runs, leakage.sequence_features(runs, said), 1, True, 1, 0, 0, False, 1.0
    )
    cover = ReportCover(model="<b>m</b>", corpus="<i>", unit="turn")
    page = leakage_page.render_leakage_page(found, cover, decode=lambda _: nasty)
    assert page.count("</script>") == 3 and "alert(1)</script>" not in page
    assert "<b>m</b>" not in page and "<i>" not in page.replace('<i class="key', "")
    embedded = re.search(r'id="data">(.*?)</script>', page, re.S).group(1)
    assert json.loads(embedded)[0]["text"] == nasty


def test_an_empty_report_is_a_page(tmp_path):
    said = (leakage.Document("ann", "a", [0, 1]),)
    scores = leakage.TokenScores([np.zeros(2)], [np.full(2, 9)])
    runs = leakage.find_runs(said, scores, k=1)
    found = leakage.LeakageReport(
        said, scores, runs, leakage.sequence_features(runs, said), 1, True, 1, 0, 0, False, 1.0
    )
    written = leakage_page.write_report_files(
        found, tmp_path, ReportCover(model="m", corpus="c", unit="turn")
    )
    assert written.read_text().count("No bin holds 5 sequences of 5 users.") == 1
    assert "No run was found." in leakage_page.render_leakage_page(
        found, ReportCover("m", "c", "turn"), decode=str
    )
    assert len(pd.read_parquet(tmp_path / "runs.parquet")) == 0
    lengths = ReportCover(model="m", corpus="c", unit="turn", lengths_only=True)
    assert leakage_page.write_report_files(found, tmp_path, lengths) == written


def test_a_transformers_folder_is_read(run, home, tmp_path):
    bpe = load_tokenizer(home / "model" / "tokenizer.json")
    ends = {"bos_token_id": bpe.bos, "eos_token_id": bpe.eos}
    shape = GPT2Config(
        vocab_size=bpe.vocab_size, n_embd=16, n_layer=1, n_head=2, n_positions=16, **ends
    )
    GPT2LMHeadModel(shape).save_pretrained(tmp_path / "gpt2")
    backend = tokenizer_module.copy_backend_tokenizer(bpe)
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<BOS>").save_pretrained(
        tmp_path / "gpt2"
    )
    code, _, _ = run(tmp_path / "gpt2", "--corpus", home / "c.jsonl", "--out", tmp_path / "r",
                     "--public", home / "public", "--unit", "dialogue", "--reveal")  # fmt: skip
    assert code == 0
    facts = json.loads((tmp_path / "r" / "report.json").read_text())["summary"]
    assert facts["unit"] == "dialogue" and facts["texts_beyond_the_context_read_in_windows"] > 0


def write_lines(path, dialogues):
    path.write_text("".join(json.dumps(d) + "\n" for d in dialogues))
    return path


def test_bad_input_is_one_line_and_writes_nothing(run, home, tmp_path):
    turn = {"speaker": "USR", "text": "hi"}
    good, model = home / "c.jsonl", home / "model"
    nobody = write_lines(tmp_path / "nobody.jsonl", [{"id": "0", "turns": [turn]}])
    blank = write_lines(tmp_path / "blank.jsonl", [{"id": "0", "user": "", "turns": [turn]}])
    silent = {"speaker": "", "text": ""}
    empty = write_lines(tmp_path / "empty.jsonl", [{"id": "0", "user": "u", "turns": [silent]}])
    pickled, other, broken, nothing = (tmp_path / n for n in ("p", "other", "broken", "nothing"))
    pickled.mkdir()
    nothing.mkdir()
    (pickled / "pytorch_model.bin").write_bytes(b"never opened")
    for folder in (other, broken):
        folder.mkdir()
        for name in ("model.safetensors", "model.json", "tokenizer.json"):
            (folder / name).write_bytes((model / name).read_bytes())
    train_bpe(["hello"], vocab_size=262).save(other / "tokenizer.json")
    (broken / "model.safetensors").write_bytes(b"torn")
    foreign = tmp_path / "foreign"
    bpe = train_bpe([f"zebra {i} crossing" for i in range(9)] * 2, vocab_size=280)
    spec = ModelSpec("lstm", vocab_size=bpe.vocab_size, hidden=8)
    save(build_model(spec, 0), spec, bpe, foreign)
    cases = {
        "top_k=0: must be at least 1": [model, "--corpus", good, "--top-k", 0],
        "top_k=9999: must be at least 1 and at most": [model, "--corpus", good, "--top-k", 9999],
        "min_length=0: must": [model, "--corpus", good, "--min-length", 0],
        "threshold: needs a public": [model, "--corpus", good, "--threshold", 2],
        "threshold=-1.0: must be positive": [model, "--corpus", good, "--threshold", -1],
        "reveal, lengths_only": [model, "--corpus", good, "--reveal", "--lengths-only"],
        'has no user id; give each a "user"': [model, "--corpus", nobody],
        "has no user id; give each a": [model, "--corpus", blank],
        "all of its texts are empty": [model, "--corpus", empty],
        "no such file": [model, "--corpus", tmp_path / "none.jsonl"],
        "unit='word': must be one of": [model, "--corpus", good, "--unit", "word"],
        "no such folder": [tmp_path / "none", "--corpus", good],
        "pickled weights (pytorch_model.bin), it needs a safetensors": [pickled, "--corpus", good],
        "holds no weights": [nothing, "--corpus", good],
        "its tokenizer has": [other, "--corpus", good],
        "holds no model with its tokenizer": [broken, "--corpus", good],
        "public='foreign': must read the tokenizer": [model, "--corpus", good, "--public", foreign],
    }
    for message, args in cases.items():
        code, out, err = run(*args, "--out", tmp_path / "out")
        assert (code, out) == (2, ""), message
        assert err.startswith("crtlib: error: ") and err.count("\n") == 1 and message in err, err
        assert not (tmp_path / "out").exists(), message


def test_at_most_is_not_less_than_there_are():
    """A redacted report: of one person's fifty telephone numbers "at_most 4" were completed."""
    bins = leakage_tables.BinnedCounts(pd.Series([True] * 50), pd.Series(["ann"] * 50))
    row = bins.row("kind", "phone", pd.Series([True] * 50))
    assert row["at_most"] is None or row["at_most"] >= 50
