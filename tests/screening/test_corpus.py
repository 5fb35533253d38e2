"""A corpus screened on disk: batches change nothing, nobody is named, labels judge."""

import functools
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from confide.labels import adjudication, drawing, imports, label_tasks
from confide.reports import screening_page as pages
from confide.screening import corpus_screening, dialogue_batches, screened_rates
from confide.screening.corpus_screening import ScreeningOptions, default_policy
from confide.text import registry_units, text_sizes
from crtlib import outputs
from crtlib.checks import DamagedError, MachineError
from crtlib.screening import rates, regex_policies
from crtlib.screening.policy_names import policy_by_name
from crtlib.text import canaries, corpora, customersim, data_points, jsonl, screened_folder
from crtlib.text.records import Corpus, Dialogue, Turn
from tests.fuzz.home import mark_again

HOW = ScreeningOptions("regex:customersim", "cautious", gamma=0.2, seed=1)


@pytest.fixture
def home(tmp_path):
    jsonl.write_jsonl(customersim.simulate_corpus(40, 0), tmp_path / "c.jsonl")
    return tmp_path


def rows(folder, part):
    return list(screened_folder.read_screened_rows(folder, part))


def test_small_batches_and_two_workers_change_nothing(home, monkeypatch):
    whole = corpus_screening.screen_corpus(home / "c.jsonl", home, HOW, key=b"k" * 32)
    before = {part: rows(home, part) for part in screened_folder.SCREENED_PARTS}
    monkeypatch.setattr(dialogue_batches, "TURNS_PER_BATCH", 20)
    (home / "b").mkdir()
    with ThreadPoolExecutor(2) as executor:
        cut = corpus_screening.screen_corpus(
            home / "c.jsonl", home / "b", HOW, key=b"k" * 32, executor=executor
        )
    assert cut.summary == whole.summary and cut.rates == whole.rates
    assert {part: rows(home / "b", part) for part in screened_folder.SCREENED_PARTS} == before
    assert whole.summary["duplicates"] > 0 < whole.summary["missed_secrets"]


def test_a_text_is_read_for_its_points_and_for_its_units_and_no_more(home, monkeypatch):
    honest, readings = corpora.read_dialogues, []

    def read(path, **options):
        readings.append(path)  # when the first dialogue is asked for
        yield from honest(path, **options)

    monkeypatch.setattr(corpora, "read_dialogues", read)
    corpus_screening.screen_corpus(home / "c.jsonl", home, HOW, key=b"k" * 32)
    assert len(readings) == 2


def test_workers_of_a_scheduler_screen_as_one_process_does(home, monkeypatch, run):
    distributed = pytest.importorskip(
        "distributed", reason="the package distributed is not installed"
    )
    monkeypatch.setattr(dialogue_batches, "TURNS_PER_BATCH", 50)
    words = ["screen", home / "c.jsonl", "--policy", "regex:customersim", "--keep-ids"]
    assert run(*words, "--out", home / "alone")[0] == 0
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with distributed.LocalCluster(**options, dashboard_address=None, protocol="tcp") as cluster:
        name = cluster.scheduler_address.replace("tcp://", "dask://")
        assert run(*words, "--executor", name, "--out", home / "spread")[0] == 0
    for path in (home / "alone").rglob("*.parquet"):
        assert (
            path.read_bytes() == (home / "spread" / path.relative_to(home / "alone")).read_bytes()
        )
    code, _, error = run(*words, "--executor", "dask://nowhere", "--out", home / "none")
    assert code == 2 and "must be processes:" in error and error.count("\n") == 1


def test_a_killed_screening_flags_no_shard_twice(home, monkeypatch):
    honest, flagged = corpus_screening._flag_batch, []
    monkeypatch.setattr(dialogue_batches, "TURNS_PER_BATCH", 50)

    def flag(how, shas, batch):
        if len(flagged) == kill:
            raise KeyboardInterrupt
        flagged.append(batch[0].id)
        return honest(how, shas, batch)

    monkeypatch.setattr(corpus_screening, "_flag_batch", flag)
    kill = 3
    with pytest.raises(KeyboardInterrupt):
        pages.screen_into_folder(home / "c.jsonl", home / "s", HOW)
    kill = -1
    pages.screen_into_folder(home / "c.jsonl", home / "s", HOW)
    assert len(flagged) == len(set(flagged)) > 4
    pages.screen_into_folder(home / "c.jsonl", home / "whole", HOW)
    same = ("points", "private", "duplicates", "redacted_spans", "rates", "flagged")
    one, other = (screened_folder.read_screening_summary(home / name) for name in ("s", "whole"))
    assert {name: one[name] for name in same} == {name: other[name] for name in same}
    assert sorted(path.name for path in home.iterdir()) == ["c.jsonl", "s", "whole"]


def test_shards_of_another_policy_are_done_anew(home, monkeypatch):
    honest = corpus_screening._ScreeningTally.write
    monkeypatch.setattr(
        corpus_screening._ScreeningTally,
        "write",
        lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
    )
    with pytest.raises(KeyboardInterrupt):
        pages.screen_into_folder(home / "c.jsonl", home / "s", HOW)
    monkeypatch.setattr(corpus_screening._ScreeningTally, "write", honest)
    none = ScreeningOptions("none", "cautious")
    made = pages.screen_into_folder(home / "c.jsonl", home / "s", none).summary
    assert made["redacted_spans"] == 0


def test_a_summary_that_may_be_shown_has_no_plain_hash_of_the_text(home):
    """And it is shown by its owner: its counts are exact, and one found secret changes them."""
    pages.screen_into_folder(home / "c.jsonl", home / "s", HOW)
    for name in ("summary.json", "screening.html"):
        assert (home / "s" / name).stat().st_mode & 0o077 == 0
    shown = (home / "s" / "summary.json").read_text()
    assert "hmac" in shown and corpora.hash_corpus(home / "c.jsonl") not in shown


@pytest.mark.parametrize("name", ["unit", "dedup", "dedup_by", "duplicates"])
def test_an_option_of_another_value_is_refused_by_its_own_name(name):
    with pytest.raises(ValueError, match=rf"^{name}='foo': must be one of "):
        ScreeningOptions("none", **{name: "foo"})


def test_a_policy_that_changes_meanwhile_is_refused_and_what_was_finished_kept(home):
    (home / "names.txt").write_text("Ann\n")
    how = ScreeningOptions(f"list:{home}/names.txt")
    shas = how.policy_digests()
    (home / "names.txt").write_text("Ann\nBob\n")
    batch = corpora.read_corpus_at(home / "c.jsonl").dialogues[:1]
    with pytest.raises(MachineError, match="has changed, or differs"):
        corpus_screening._flag_batch(how, shas, batch)


def test_nobody_is_named_and_the_owner_can_look_up(home):
    out = home / "s"
    pages.screen_into_folder(home / "c.jsonl", out, replace(HOW, duplicates="mask"), reveal=2)
    corpus = corpora.read_corpus_at(home / "c.jsonl")
    users, texts = {d.user for d in corpus.dialogues}, {t.text for t in corpus.turns()}
    named = pq.read_table(out / "private" / "ids.parquet").to_pylist()
    assert {row["user"] for row in named} == users
    every = [row for part in screened_folder.SCREENED_PARTS for row in rows(out, part)]
    assert {row["id"] for row in every} == {row["pseudonym"] for row in named}
    assert not {row["user"] for row in every} & users
    assert [row["id"] for row in rows(out, "public")] == sorted(
        row["id"] for row in rows(out, "public")
    )
    modes = {str(p.relative_to(out)): p.stat().st_mode & 0o777 for p in out.rglob("*")}
    assert {n for n, m in modes.items() if m & 0o077} == {
        "crtlib.json", "public", "public/data",
        "public/data/train-00000-of-00001.parquet",
    }  # fmt: skip
    shown = (out / "screening.html").read_text() + (out / "summary.json").read_text()
    assert not any(text in shown for text in texts if len(text) > 25)
    assert "<mark>" in (out / "private" / "examples.html").read_text()
    ids = {row["id"] for row in every}
    pages.screen_into_folder(
        home / "c.jsonl", out, ScreeningOptions("cautious", duplicates="mask"), force=True
    )
    again = {row["id"] for part in screened_folder.SCREENED_PARTS for row in rows(out, part)}
    assert again == ids  # the key stays with its folder


def test_labels_judge_and_each_pair_is_counted_once(home):
    drawing.draw_label_tasks(home / "c.jsonl", home / "labels", turns=25, seed=3, forms=["jsonl"])
    known = {
        (d.id, i): t.secrets
        for d in corpora.read_dialogues(home / "c.jsonl")
        for i, t in enumerate(d.turns)
    }
    kinds = {"order": "id", "tracking": "id"}
    answers = [
        {
            "task": t.task,
            "done": True,
            "secrets": [
                {"kind": kinds.get(s.kind, s.kind), "start": s.start, "end": s.end}
                for s in known[t.id, t.turn]
            ],
        }
        for t in label_tasks.read_tasks(home / "labels")
    ]
    about = label_tasks.read_label_facts(home / "labels")
    export = {"schema": "crtlib/labels/1", "labels": about["labels"], "tasks": answers}
    (home / "done.json").write_text(json.dumps(export))
    imports.import_labels(home / "c.jsonl", home / "done.json", home / "labels")
    with_secret = sum(bool(a["secrets"]) for a in answers)
    judged = []
    for k, policy in enumerate(("regex:customersim", "none", "regex:customersim")):
        how = ScreeningOptions(policy, "cautious")
        outcome = pages.screen_into_folder(
            home / "c.jsonl", home / f"s{k}", how, labels=home / "labels"
        )
        assert outcome.rates.trace.judged_secrets == with_secret
        judged.append(outcome.rates.policy_pairs)
        missed = 0 if policy != "none" else with_secret
        assert (outcome.rates.miss.failures, outcome.summary["labels"]["drawn"]) == (
            missed, "at_random",
        )  # fmt: skip
    assert judged == [1, 2, 2]
    how = ScreeningOptions(
        "none", "cautious", "dialogue"
    )  # on other points: other rates, so one more
    outcome = corpus_screening.screen_corpus(
        home / "c.jsonl", home, how, key=None, judges=home / "labels"
    )
    assert outcome.rates.policy_pairs == 3
    assert (
        screened_rates.rates_of_screened_folder(home / "s1").alpha == 0.05 / 6
    )  # chosen among what was judged since
    missing = next(a for a in answers if a["secrets"])  # a second reader passes over one of them
    adjudication.write_adjudication(home / "c.jsonl", home / "labels", home / "again", share=1)
    asked = label_tasks.read_label_facts(home / "labels")["again"]["read"]
    export["labels"] = label_tasks.name_label_page(about, "second")
    export["tasks"] = [
        a | {"secrets": []} if a is missing else a for a in answers if a["task"] in asked
    ]
    (home / "again.json").write_text(json.dumps(export))
    imports.import_labels(home / "c.jsonl", home / "again.json", home / "labels", role="second")
    for k, (policy, doubted) in enumerate((("regex:customersim", 0), ("none", 1))):
        how = ScreeningOptions(policy, "cautious")
        outcome = pages.screen_into_folder(
            home / "c.jsonl", home / f"twice{k}", how, labels=home / "labels"
        )
        trace, twice = outcome.rates.trace, outcome.summary["labels"]["read_twice"]
        assert (trace.failures, trace.judged_secrets) == (
            doubted * with_secret,
            with_secret - 1 + doubted,
        )
        assert (twice["doubted"], twice["turns"]) == (doubted, len(asked))  # one of each message
        assert trace.reread_counts == (0, with_secret - 1)
        assert (
            screened_rates.rates_of_screened_folder(home / f"twice{k}").trace.reread_counts
            == trace.reread_counts
        )
        assert outcome.rates.policy_pairs == 4 + k  # another reading judges anew
    jsonl.write_jsonl(customersim.simulate_corpus(40, 9), home / "other.jsonl")
    with pytest.raises(ValueError, match="they can teach, but not judge"):
        pages.screen_into_folder(home / "other.jsonl", home / "x", HOW, labels=home / "labels")
    assert not (home / "x").exists()


def test_without_labels_rates_are_unknown_and_that_is_said(home):
    turns = (Turn("USR", "my order is 7351"), Turn("SYS", "it is on its way"))
    jsonl.write_jsonl(Corpus("bare", (Dialogue("d", "ann", turns),)), home / "bare.jsonl")
    outcome = corpus_screening.screen_corpus(
        home / "bare.jsonl", home, ScreeningOptions("none"), key=None
    )
    assert outcome.summary["rates"]["trace"]["how"] == "unknown"
    assert outcome.summary["missed_secrets"] is outcome.summary["labels"] is None
    notes = "; ".join(outcome.notes)
    assert "a certificate promises of each secret what it does of one that was missed" in notes
    assert "pi flagged nothing" in notes and "CRT is DP-SGD on redacted text" in notes


def test_labels_without_a_secret_are_not_called_none(home):
    """Fault: "without labels nothing is known", where somebody had read ten turns."""
    bare, labels = home / "bare.jsonl", home / "bare-labels"
    talks = [Dialogue(f"d{k}", f"u{k}", (Turn("USR", f"it is late {k}"),)) for k in range(10)]
    jsonl.write_jsonl(Corpus("bare", tuple(talks)), bare)
    drawing.draw_label_tasks(bare, labels, turns=10, seed=3)
    about = label_tasks.read_label_facts(labels)
    read = [{"task": t.task, "done": True, "secrets": []} for t in label_tasks.read_tasks(labels)]
    export = {"schema": "crtlib/labels/1", "labels": about["labels"], "tasks": read}
    (home / "none.json").write_text(json.dumps(export))
    imports.import_labels(bare, home / "none.json", labels)
    how = ScreeningOptions("names", "cautious")
    said = {
        given: "; ".join(
            corpus_screening.screen_corpus(bare, home, how, key=None, judges=given).notes
        )
        for given in (None, labels)
    }
    assert "without labels nothing is known" in said[None]
    assert "no turn that was read has a secret, so nothing is known" in said[labels]
    assert "without labels" not in said[labels]


@pytest.mark.parametrize("unit", ["turn", "dialogue", "user"])
@pytest.mark.parametrize("keep_ids", [False, True])
def test_what_was_private_is_private_when_it_is_read_again(tmp_path, unit, keep_ids):
    said = [
        Dialogue(f"d/{i}", f"u/{i % 3}", (Turn("USR", f"word {i}"), Turn("SYS", f"my order {i}")))
        for i in range(6)
    ]
    jsonl.write_jsonl(Corpus("bare", tuple(said)), tmp_path / "c.jsonl")
    (tmp_path / "ours.toml").write_text("[order]\npattern = 'order 5'\n")
    how = ScreeningOptions(
        "none", f"regex:{tmp_path}/ours.toml", unit, dedup="none", keep_ids=keep_ids
    )
    pages.screen_into_folder(tmp_path / "c.jsonl", tmp_path / "s", how)
    counts = [len(rows(tmp_path / "s", part)) for part in screened_folder.SCREENED_PARTS]
    points = data_points.make_points(corpora.load_corpus(tmp_path / "s"), unit)
    spoken = [bool(spans) for spans in policy_by_name(f"screened:{tmp_path}/s")(points)]
    assert [spoken.count(False), spoken.count(True)] == counts and counts[1] == 1
    assert all("order 5" in p.text for p, private in zip(points, spoken, strict=True) if private)


def test_an_empty_message_is_private_where_everything_is(tmp_path):
    """Fault: one of 40 messages was public under ``--conservative everything``, and its training
    had a public phase. Screened once more by the folder's own split, it was public again."""
    said = [
        Dialogue(f"d{i}", f"u{i}", (Turn("", f"word {i}" if i else ""),)) for i in range(40)
    ]  # fmt: skip
    jsonl.write_jsonl(said, tmp_path / "c.jsonl")
    how = ScreeningOptions("none", "everything")
    pages.screen_into_folder(tmp_path / "c.jsonl", tmp_path / "s", how)
    counts = [len(rows(tmp_path / "s", part)) for part in screened_folder.SCREENED_PARTS]
    points = data_points.make_points(corpora.load_corpus(tmp_path / "s"), "turn")
    assert counts == [0, 40] and all(policy_by_name(f"screened:{tmp_path}/s")(points))


def test_canaries_that_stand_in_a_file_judge_as_people_do(home):
    """A name in a file decides nothing: those that a training plants are counted nowhere."""
    planted = canaries.insert_canaries(
        customersim.simulate_corpus(40, 0), canaries.make_canaries(5, seed=1), copies=20, seed=1
    )
    jsonl.write_jsonl(planted, home / "planted.jsonl")
    outcome = corpus_screening.screen_corpus(home / "planted.jsonl", home, HOW, key=None)
    assert outcome.rates.trace.judged_secrets == 45
    points = data_points.make_points(planted, "turn")
    assert (
        rates.measure_rates(
            points, regex_policies.none_policy, regex_policies.none_policy
        ).trace.judged_secrets
        == 40
    )


def test_the_simulators_text_is_known_and_other_text_is_not(home):
    assert default_policy(home / "c.jsonl") == "regex:customersim"
    text = (home / "c.jsonl").read_text().replace("help", "Help", 1)
    (home / "c.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"^policy: none fits this text; choose one \(list:FILE"):
        default_policy(home / "c.jsonl")


def test_a_damaged_part_is_named(home):
    pages.screen_into_folder(home / "c.jsonl", home / "s", HOW)
    file = next((home / "s" / "private" / "data").iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="is not what was screened"):
        list(corpora.read_dialogues(home / "s"))


def test_a_file_that_was_put_into_a_screened_folder_is_refused(home):
    """Fault: any file in its place was read, also one that the marker did not name."""
    pages.screen_into_folder(home / "c.jsonl", home / "s", HOW)
    more = home / "s" / "public" / "data" / "train-00001-of-00002.parquet"
    pq.write_table(pa.table({"id": ["x"], "user": ["x"], "text": ["Ada"]}), more)
    with pytest.raises(DamagedError, match="is not what was screened"):
        list(corpora.read_dialogues(home / "s"))
    more.unlink()
    mine, its = (next((home / "s" / p / "data").iterdir()) for p in ("public", "private"))
    mine.write_bytes(its.read_bytes())
    marker = json.loads((home / "s" / "crtlib.json").read_text())
    marker["files"][str(mine.relative_to(home / "s"))] = outputs.hash_file(mine)
    (home / "s" / "crtlib.json").write_text(json.dumps(marker))
    with pytest.raises(ValueError, match=r"has no intact crtlib.json; it is unfinished"):
        list(corpora.read_dialogues(home / "s"))
    del marker["sum"]  # who knows how it is made can make it anew
    marker["sum"] = hashlib.sha256(json.dumps(marker, sort_keys=True).encode()).hexdigest()
    (home / "s" / "crtlib.json").write_text(json.dumps(marker))
    with pytest.raises(DamagedError, match="is not what was screened"):
        list(corpora.read_dialogues(home / "s"))


def test_a_summary_of_another_form_is_one_line(home):
    """Who holds the key can list it again. Fault: it ended ``train`` with a traceback."""
    pages.screen_into_folder(home / "c.jsonl", home / "s", HOW)
    path = home / "s" / "private" / "summary.json"
    good = json.loads(path.read_bytes())
    assert screened_folder.read_screening_summary(home / "s") == good
    for where in ("sizes", "sizes user turn", "rates trace upper", "rates by_kind name miss",
                  "labels judged", "unit", "about users_are", "about to", "decided"):  # fmt: skip
        *above, last = where.split()
        for new in (7.5, [], None, {"a": 1e400}):
            value = json.loads(json.dumps(good))
            place = functools.reduce(dict.__getitem__, above, value)
            if place[last] is new:
                continue
            place[last] = new
            path.write_text(json.dumps(value))
            mark_again(home / "s", path)
            with pytest.raises(ValueError, match=r"summary\.json: is not in the format") as told:
                screened_folder.read_screening_summary(home / "s")
            assert "\n" not in str(told.value)


def test_a_screened_folder_knows_the_units_and_sizes_of_the_raw_text(home):
    """Fault: it had neither, so a duplicate that was left out was no message of its person."""
    turns = tuple(
        Turn("USR", f"My {word} does not work. " * 5) for word in ("phone", "phone", "tv")
    )
    people = [Dialogue(f"{who}-{k}", who, turns) for who in ("ann", "bob") for k in range(2)]
    jsonl.write_jsonl(people, home / "c.jsonl")
    pages.screen_into_folder(
        home / "c.jsonl", home / "s", ScreeningOptions("regex:customersim", "none")
    )
    assert (
        screened_folder.read_screening_summary(home / "s")["public"] == 2
    )  # the copies are left out
    raw = set(registry_units.hash_registry_units(home / "c.jsonl"))
    assert raw < set(registry_units.hash_registry_units(home / "s"))  # and its own rows
    assert text_sizes.max_points_per_unit(home / "s") == text_sizes.max_points_per_unit(
        home / "c.jsonl"
    )
    assert text_sizes.max_points_per_unit(home / "s")["user"] == {"turn": 6, "dialogue": 2}
    shown = (home / "s" / "summary.json").read_text()
    assert '"sizes"' not in shown and '"decided"' not in shown
