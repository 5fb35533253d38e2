"""The odometer: nothing is lost from it unseen, and what it holds composes as accounted."""

import json
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from confide import odometer, odometer_lines, spending, text_registry
from confide.training import odometer_run
from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussian, count_private_steps
from crtlib.checks import DamagedError
from crtlib.text import corpora, customersim, jsonl

STEP = SampledGaussian(0.02, 1.5, 200)
CORPUS, OTHER = "c" * 64, "d" * 64
FACTS = {
    "corpus": CORPUS, "unit": "turn", "method": "crt", "relation": "replace",
    "screening": "5" * 64, "gamma": 0.05, "delta2": 0.01, "holds": {}, "events": (STEP,),
    "void": (),
}  # fmt: skip


def add(folder, run="a", **changes):
    return odometer.add_entry(folder, **{**FACTS, "run": run, "state": "started", **changes})


def lines(folder):
    return [
        line + "\n"
        for line in odometer_lines.read_ledger_lines(folder / odometer_lines.LEDGER_FILE)
    ]


def write(folder, content):
    base = sqlite3.connect(folder / odometer_lines.LEDGER_FILE)
    with base:
        base.execute("DELETE FROM lines")
        base.executemany(
            "INSERT INTO lines (content) VALUES (?)", [(c.rstrip("\n"),) for c in content]
        )
        base.execute("UPDATE counted SET lines = (SELECT count(*) FROM lines)")
    base.close()


def test_a_ledger_is_private_and_holds_what_was_entered(tmp_path):
    folder = tmp_path / "x.odometer"
    first = add(folder)
    again = odometer.add_later_entry(folder, first, state="finished", model="a" * 64)
    assert odometer.read_entries(folder) == [first, again] and again.previous == first.entry
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / odometer_lines.LEDGER_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("harm, says", [
    (lambda rows: [rows[0], rows[2]], "entry 2 does not follow entry 1"),
    (lambda rows: rows[1:], "entry 1 does not follow entry 0"),
    (lambda rows: [rows[1], rows[0], rows[2]], "entry 1 does not follow entry 0"),
    (lambda rows: [rows[0].replace(": 200", ": 2"), *rows[1:]], "entry 1 was changed"),
    (lambda rows: [*rows[:2], rows[2][:40]], "entry 3 is damaged"),
])  # fmt: skip
def test_a_line_that_is_lost_or_changed_shows(tmp_path, harm, says):
    for run in "abc":
        add(tmp_path, run)
    write(tmp_path, harm(lines(tmp_path)))
    with pytest.raises(DamagedError, match=says):
        odometer.read_entries(tmp_path)
    with pytest.raises(DamagedError, match=says):  # nor is anything added to it
        add(tmp_path, "d")


def test_a_started_run_counts_in_full_and_once(tmp_path):
    first = add(tmp_path)
    went_on = odometer.add_later_entry(tmp_path, first, state="started", events=(STEP, STEP))
    odometer.add_later_entry(tmp_path, went_on, state="finished")
    add(tmp_path, "b")
    whole = spending.sum_spending(odometer.read_entries(tmp_path))
    assert (whole.protected_run_count, whole.events) == (2, (STEP, STEP, STEP))
    assert spending.sum_spending(odometer.read_entries(tmp_path), run="b").events == (STEP, STEP)
    assert spending.sum_spending(odometer.read_entries(tmp_path), run="a").events == ()


def test_what_became_of_an_earlier_run_later_counts(tmp_path):
    first = add(tmp_path)
    add(tmp_path, "b")
    odometer.add_later_entry(tmp_path, first, state="finished", events=(STEP, STEP))
    assert spending.sum_spending(odometer.read_entries(tmp_path), run="b").events == (STEP, STEP)
    odometer.strike_run(tmp_path, first.entry[:12], because="deleted unseen")
    assert spending.sum_spending(odometer.read_entries(tmp_path), run="b").protected_run_count == 0


def test_a_run_is_struck_with_a_reason_only(tmp_path):
    first = add(tmp_path)
    with pytest.raises(ValueError, match="because=''"):
        odometer.strike_run(tmp_path, first.entry, because=" ")
    for wrong in ("", "f" * 64):
        with pytest.raises(ValueError, match="must be the start of one entry's hash"):
            odometer.strike_run(tmp_path, wrong, because="deleted")
    odometer.add_later_entry(
        tmp_path, first, state="struck"
    )  # by hand, without a reason: it counts
    assert spending.sum_spending(odometer.read_entries(tmp_path)).protected_run_count == 1


def test_a_run_without_secret_noise_is_counted_apart(tmp_path):
    add(tmp_path, events=None, delta2=1.0, gamma=1.0, screening="6" * 64)
    add(tmp_path, "b")
    whole = spending.sum_spending(odometer.read_entries(tmp_path))
    assert (whole.protected_run_count, whole.unprotected_run_count) == (1, 1)
    assert whole.rates("5" * 64, 0.0, 0.0) == (0.05, 0.01)


def test_rates_add_over_screenings_and_count_once_for_the_same(tmp_path):
    add(tmp_path, gamma=0.04)
    add(tmp_path, "b", gamma=0.06)
    add(tmp_path, "c", screening="6" * 64, gamma=0.5, delta2=0.2)
    whole = spending.sum_spending(odometer.read_entries(tmp_path))
    assert whole.rates("5" * 64, 0.05, 0.03) == pytest.approx((0.56, 0.23))
    assert whole.rates("7" * 64, 0.9, 0.03) == pytest.approx((1.0, 0.24))


def test_an_earlier_run_of_a_smaller_unit_counts_as_a_group(tmp_path):
    """Composed, so equal to the group's epsilon where nothing else was spent."""
    add(tmp_path)
    before = spending.sum_spending(odometer.read_entries(tmp_path))
    assert before.groups("dialogue", {"turn": 3}) == (3,)
    assert before.groups("turn", {}) == (1,)
    with pytest.raises(ValueError, match="how many turns one dialogue holds"):
        before.groups("dialogue", {})
    add(tmp_path, "b", unit="dialogue", holds={"turn": 3})
    later = spending.sum_spending(odometer.read_entries(tmp_path))
    assert later.groups("turn", {}) == (1, 1)  # one turn changes one dialogue
    assert later.groups("dialogue", {"turn": 3}) == (3, 1)
    bill = spending.report_spending(spending.read_odometer_history(tmp_path, None), delta=1e-5)
    exact = privacy_cost.epsilon(
        (STEP, STEP), delta=1e-5, neighbouring_relation="replace", group=(3, 1)
    )
    assert bill["unit"] == "dialogue" and exact <= bill["together"]["epsilon"] <= exact + 2e-3
    assert (
        privacy_cost.epsilon((STEP, STEP), delta=1e-5, neighbouring_relation="replace")
        < exact - 0.1
    )
    json.dumps(bill, allow_nan=False)


def test_the_bill_counts_the_most_messages_that_any_run_states(tmp_path):
    """Fault: what the last run of a person's unit stated counted for all, so another order of the
    same two runs gave 14.3 in place of 5.34."""
    add(tmp_path, unit="turn", about={"user": {"turn": 14}})
    for name, messages in (("b", 12), ("c", 5)):
        add(tmp_path, name, unit="user", holds={"turn": messages})
    spent = spending.sum_spending(odometer.read_entries(tmp_path))
    assert spent.holds("user") == {"turn": 14}
    assert spent.groups("user", {"turn": 12}) == (14, 1, 1)


def test_the_bill_lists_each_run_and_all_together(tmp_path):
    loud = SampledGaussian(0.5, 0.0, 1)
    first = add(tmp_path)
    odometer.add_later_entry(tmp_path, first, state="finished", model="a" * 64)
    add(tmp_path, "b", method="sgd", events=None, gamma=1.0)
    add(tmp_path, "c", unit="dialogue", events=(loud,), gamma=0.0, screening="6" * 64)
    odometer.strike_run(tmp_path, odometer.read_entries(tmp_path)[-1].entry, because="deleted")
    one, two, three = spending.report_spending(
        spending.read_odometer_history(tmp_path, None), delta=1e-5
    )["runs"]
    assert set(one) == {"entry", "time", "state", "method", "unit", "model", "because", "epsilon",
                        "void_because"}  # fmt: skip
    exact = privacy_cost.epsilon(STEP, delta=1e-5, neighbouring_relation="replace")
    assert exact <= one["epsilon"] <= exact + 1e-3 and one["model"] == "a" * 64
    assert (one["state"], two["epsilon"], two["method"]) == ("finished", None, "sgd")
    assert (three["epsilon"], three["because"], three["state"]) == ("inf", "deleted", "struck")
    bill = spending.report_spending(spending.read_odometer_history(tmp_path, None), delta=1e-5)
    assert bill["delta"] == 1e-5 and bill["unit"] == "turn"  # of those that count
    assert bill["together"] == {"epsilon": "inf", "gamma": 1.0, "delta2": 1.0}
    odometer.strike_run(tmp_path, two["entry"], because="deleted")
    again = spending.report_spending(spending.read_odometer_history(tmp_path, None), delta=1e-5)
    assert again["together"]["epsilon"] == one["epsilon"]
    with pytest.raises(ValueError, match=r"delta=1: must be in \(0, 1\)"):
        spending.report_spending(spending.read_odometer_history(tmp_path, None), delta=1)
    odometer.strike_run(tmp_path, one["entry"], because="deleted")
    assert spending.report_spending(spending.read_odometer_history(tmp_path, None), delta=1e-5)[
        "together"
    ] == {"epsilon": 0.0, "gamma": 0.0, "delta2": 0.0}


def test_the_trials_of_a_search_are_spent_too(tmp_path):
    """The certificate charged them, the line did not, and the next model composed with one."""
    line = add(tmp_path, trials=3)
    assert (
        line.trials == 3 and odometer.add_later_entry(tmp_path, line, state="finished").trials == 3
    )
    ((event,),) = [spending.sum_spending(odometer.read_entries(tmp_path)).events]
    assert (event.steps, event.noise_multiplier) == (3 * STEP.steps, STEP.noise_multiplier)
    exact = privacy_cost.epsilon((STEP,) * 3, delta=1e-5, neighbouring_relation="replace")
    (row,) = spending.report_spending(spending.read_odometer_history(tmp_path, None), delta=1e-5)[
        "runs"
    ]
    assert exact <= row["epsilon"] <= exact + 1e-3
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="trials"):
            add(tmp_path / "y", trials=wrong)


def test_the_bill_counts_what_the_registry_knows(tmp_path):
    """A20: of the odometer alone, next month's bill began at nothing."""
    registry = text_registry.Registry(tmp_path / "registry")
    for corpus in (CORPUS, OTHER):
        registry.register(corpus, [("user", "ada")])
    add(tmp_path / "january", registry=registry)
    odometer.prepare_odometer(tmp_path / "february", OTHER)
    bill = spending.report_spending(
        spending.read_odometer_history(tmp_path / "february", registry), delta=1e-5
    )
    assert len(bill["runs"]) == 1 and bill["together"]["epsilon"] == bill["runs"][0]["epsilon"] > 0


def test_an_empty_or_strange_folder_is_of_no_corpus(tmp_path):
    corpus = tmp_path / "talk.jsonl"
    (tmp_path / "a.odometer").mkdir()
    (tmp_path / "b.odometer").mkdir()
    (tmp_path / "b.odometer" / odometer_lines.LEDGER_FILE).write_text("not ours")
    add(tmp_path / "c.odometer")
    assert odometer.find_odometer(corpus, CORPUS) == tmp_path / "c.odometer"


def test_it_is_found_by_the_text_and_not_by_the_name(tmp_path):
    corpus = tmp_path / "talk.jsonl"
    home = odometer.find_odometer(corpus, CORPUS)
    assert home == tmp_path / "talk.jsonl.odometer"
    add(home)
    assert odometer.find_odometer(tmp_path / "renamed.jsonl", CORPUS) == home
    assert odometer.find_odometer(corpus, OTHER) == tmp_path / f"talk.jsonl-{OTHER[:8]}.odometer"
    with pytest.raises(ValueError, match="is of corpus cccccccc…, this is dddddddd…"):
        add(home, corpus=OTHER)
    assert len(odometer.read_entries(home)) == 1


def test_what_a_model_started_from_counts_though_it_was_struck(tmp_path):
    """ "d" started from the model of "c", that one from "a"'s; nobody ever saw "a" and "b"."""
    made = {run: run * 64 for run in "abcd"}
    for run, base in (("a", None), ("b", None), ("c", made["a"]), ("d", made["c"])):
        odometer.add_later_entry(
            tmp_path, add(tmp_path, run, base=base), state="finished", model=made[run]
        )
    for e in odometer.read_entries(tmp_path)[:4]:
        if e.state == "started":
            odometer.strike_run(tmp_path, e.entry, because="never seen")
    entries = odometer.read_entries(tmp_path)
    assert [e.run for e in spending.sum_spending(entries, run="d").entries] == ["a", "c"]
    assert [e.run for e in spending.sum_spending(entries).entries] == ["a", "c", "d"]
    assert not spending.sum_spending(entries, run="d").base_unprotected


def test_a_model_that_started_from_one_without_protection_is_known(tmp_path):
    naked = add(tmp_path, "a", events=None)
    odometer.add_later_entry(tmp_path, naked, state="finished", model="a" * 64)
    for run, base in (("b", "a" * 64), ("c", "b" * 64), ("d", None)):
        odometer.add_later_entry(
            tmp_path, add(tmp_path, run, base=base), state="finished", model=run * 64
        )
    entries = odometer.read_entries(tmp_path)
    assert [spending.sum_spending(entries, run=run).base_unprotected for run in "abcd"] == [
        False,
        True,
        True,
        False,
    ]


def test_a_line_of_before_there_were_bases_is_read(tmp_path):
    content = json.loads(lines(tmp_path)[0]) if add(tmp_path) else {}
    del content["base"]
    content["entry"] = odometer_lines.hash_ledger_line(content)
    write(tmp_path, [json.dumps(content) + "\n"])
    assert odometer.read_entries(tmp_path)[0].base is None


def old_ledger(folder, end=""):
    """The ledger of this folder as crtlib wrote it before 0.3, and ``end`` after it."""
    text = "".join(lines(folder))
    (folder / odometer_lines.LEDGER_FILE).unlink()
    (folder / odometer_lines.OLD_LEDGER_FILE).write_text(text + end)


def test_a_ledger_of_before_is_read_and_taken_over(tmp_path):
    """Its last line may be torn, by a power cut: that run never began."""
    home = tmp_path / "talk.jsonl.odometer"
    first = add(home)
    old_ledger(home, end='{"schema": "crtlib/odom')
    assert odometer.read_entries(home) == [first]
    assert odometer.find_odometer(tmp_path / "talk.jsonl", CORPUS) == home
    second = add(home, "b")
    assert odometer.read_entries(home) == [first, second] and second.previous == first.entry
    assert not (home / odometer_lines.OLD_LEDGER_FILE).exists()
    add(tmp_path / "other.odometer", corpus=OTHER)
    old_ledger(tmp_path / "other.odometer")
    with pytest.raises(ValueError, match="is of corpus dddddddd"):
        add(tmp_path / "other.odometer")


def test_a_killed_process_leaves_no_dead_folder(tmp_path):
    home = tmp_path / "talk.jsonl.odometer"
    home.mkdir()
    assert odometer.find_odometer(tmp_path / "talk.jsonl", CORPUS) == home
    (home / odometer_lines.LEDGER_FILE).write_bytes(b"")
    assert odometer.find_odometer(tmp_path / "talk.jsonl", CORPUS) == home
    odometer.prepare_odometer(home, CORPUS)
    assert (
        odometer.find_odometer(tmp_path / "talk.jsonl", OTHER) != home
        and odometer.read_entries(home) == []
    )
    with pytest.raises(ValueError, match="is of corpus"):
        odometer.prepare_odometer(home, OTHER)


MANY = """
import sys
from confide import odometer, text_registry
from crtlib.accounting.events import SampledGaussian, count_private_steps
spend = {"unit": "turn", "method": "crt", "relation": "replace", "screening": "5" * 64,
         "gamma": 0.05, "delta2": 0.01, "holds": {}, "void": (),
         "events": (SampledGaussian(0.02, 1.5, 200),)}
registry = text_registry.Registry(text_registry.registry_folder())
for k in range(5):
    home = odometer.find_odometer(sys.argv[1], "c" * 64)
    registry.register("c" * 64, [("user", "u")])
    run = f"{sys.argv[2]}-{k}"
    line = odometer.add_entry(
        home, corpus="c" * 64, run=run, state="started", registry=registry, **spend
    )
    odometer.add_later_entry(home, line, state="finished", registry=registry)
"""


def test_four_processes_at_once_have_one_ledger(tmp_path):
    """Each found a folder of its own, with a budget of its own."""
    script = [sys.executable, "-c", MANY, tmp_path / "talk.jsonl"]
    running = [subprocess.Popen([*script, str(k)]) for k in range(4)]
    assert [p.wait(timeout=120) for p in running] == [0] * 4
    (home,) = tmp_path.glob("*.odometer")
    for entries in (
        odometer.read_entries(home),
        text_registry.Registry(text_registry.registry_folder()).entries(),
    ):
        assert len(entries) == 40 and len({e.run for e in entries}) == 20
    assert spending.sum_spending(odometer.read_entries(home)).events == (STEP,) * 20


def test_next_months_messages_of_the_same_people_bring_their_runs(tmp_path):
    """They share no message, so by their text alone the budgets would not add."""
    registry = text_registry.Registry(tmp_path / "registry")
    registry.register(CORPUS, [("dialogue", "hello"), ("user", "grace"), ("user", "bob")])
    registry.register(OTHER, [("dialogue", "good morning"), ("user", "bob")])
    registry.register("e" * 64, [("dialogue", "moin"), ("user", "eve")])
    about = {"user": {"turn": 7}}
    add(tmp_path / "january", registry=registry, about=about)
    add(tmp_path / "strangers", "s", corpus="e" * 64, registry=registry)
    add(tmp_path / "february", "b", corpus=OTHER, registry=registry, unit="user")
    add(tmp_path / "january", "later", registry=registry)
    before = spending.read_odometer_history(tmp_path / "february", registry, "b").spent("b")
    assert [e.run for e in before.entries] == ["a"]
    assert before.groups("user", {"turn": 2}) == (7,)  # as January's text says
    after = spending.read_odometer_history(tmp_path / "february", registry).spent()
    assert [e.run for e in after.entries] == ["a", "later", "b"]
    assert b"grace" not in registry.path.read_bytes()
    assert registry.path.stat().st_mode & 0o077 == 0 == registry.folder.stat().st_mode & 0o077


def test_a_process_that_was_killed_between_the_two_ledgers_counts_once(tmp_path):
    registry = text_registry.Registry(tmp_path / "registry")
    registry.register(CORPUS, [("user", "ada")])
    first = add(tmp_path / "x", registry=registry)
    odometer._append_line(
        registry.path, FACTS | {"run": "a", "state": "finished", "model": "a" * 64}
    )
    odometer._append_line(registry.path, FACTS | {"run": "b", "state": "started"})
    whole = spending.read_odometer_history(tmp_path / "x", registry).spent()
    assert sorted((e.run, e.state) for e in whole.entries) == [("a", "finished"), ("b", "started")]
    assert first.run == "a" and whole.protected_run_count == 2


def test_a_copy_of_a_model_and_its_heirs_are_known(tmp_path):
    """By its numbers, where its file is another; an heir of an unprotected model is one too."""
    naked = add(tmp_path, "a", events=None)
    odometer.add_later_entry(tmp_path, naked, state="finished", model="a" * 64, tensors="1" * 64)
    add(tmp_path, "b", base="9" * 64, base_tensors="1" * 64)
    odometer.strike_run(tmp_path, add(tmp_path, "x").entry, because="never seen")
    add(tmp_path, "c")
    entries = odometer.read_entries(tmp_path)
    assert spending.sum_spending(entries, run="b").base_unprotected
    last = spending.sum_spending(entries, run="c")
    assert not last.base_unprotected and (
        last.protected_run_count,
        last.unprotected_run_count,
        last.events,
    ) == (0, 2, ())
    assert spending.sum_spending(entries, run="x").run_is_struck and not last.run_is_struck


def test_a_link_to_a_corpus_has_its_odometer(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "talk.jsonl").write_text("")
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "data" / "talk.jsonl")
    assert odometer.find_odometer(link, CORPUS) == tmp_path / "data" / "talk.jsonl.odometer"


def test_a_line_waits_for_the_one_that_is_being_written(tmp_path):
    """Between what it reads and what it adds nobody else adds anything."""
    add(tmp_path)
    with odometer_lines.open_transaction(tmp_path / odometer_lines.LEDGER_FILE):
        other = sqlite3.connect(
            tmp_path / odometer_lines.LEDGER_FILE, timeout=0, isolation_level=None
        )
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("SELECT * FROM lines")
        other.close()


def test_a_line_is_on_disk_before_training_goes_on(tmp_path):
    """SQLite's own synchronous=EXTRA, which is 3: file and folder are synced at each commit."""
    with odometer_lines.open_transaction(tmp_path / odometer_lines.LEDGER_FILE) as base:
        assert base.execute("PRAGMA synchronous").fetchone() == (3,)
        assert base.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_run_that_went_on_is_after_all_that_started_before_it_did(tmp_path):
    """In its own odometer and in the registry; what became of it before is no earlier run."""
    registry = text_registry.Registry(tmp_path / "registry")
    registry.register(CORPUS, [("user", "ada")])
    first = add(tmp_path / "x", registry=registry)
    add(tmp_path / "y", "b", registry=registry)
    odometer.add_later_entry(tmp_path / "x", first, registry=registry)
    odometer.add_later_entry(tmp_path / "x", first, registry=registry, state="finished")
    add(tmp_path / "y", "c", registry=registry)
    before = spending.read_odometer_history(tmp_path / "x", registry, "a").spent("a")
    assert [e.run for e in before.entries] == ["b"]


def test_a_run_of_two_models_counts_for_each(tmp_path):
    first = add(tmp_path)
    for model in ("a" * 64, "b" * 64, "b" * 64):
        odometer.add_later_entry(tmp_path, first, state="finished", model=model)
    add(tmp_path, "b")
    assert spending.sum_spending(odometer.read_entries(tmp_path), run="b").events == (STEP, STEP)


def test_a_run_with_one_line_without_protection_has_none(tmp_path):
    first = add(tmp_path, events=None)
    odometer.add_later_entry(tmp_path, first, events=(STEP,))
    whole = spending.sum_spending(odometer.read_entries(tmp_path))
    assert (whole.protected_run_count, whole.unprotected_run_count) == (0, 1)


def test_all_odometers_of_a_text_beside_it_count(tmp_path):
    """T-january.odometer, a backup, was taken alone, as it comes first: a run that T.jsonl.odometer
    lists was not counted on a machine whose registry knew neither."""
    text = tmp_path / "T.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), text)
    sha = corpora.hash_corpus(text)
    add(tmp_path / "T-january.odometer", "old", corpus=sha, events=None)
    own = tmp_path / "T.jsonl.odometer"
    shutil.copytree(tmp_path / "T-january.odometer", own)
    add(own, "new", corpus=sha)
    add(tmp_path / "T-branch.odometer", "branch", corpus=sha)
    add(tmp_path / "other.odometer", "theirs", corpus=OTHER)
    assert odometer.find_odometer(text, sha) == own
    facts = {n: v for n, v in FACTS.items() if n not in ("corpus", "events")}
    meter = odometer_run.open_odometer(text, facts, init="random", protects=True)
    before = (tmp_path / "T-branch.odometer" / odometer_lines.LEDGER_FILE).read_bytes()
    meter.start([STEP], resumed=False)
    assert sorted(e.run for e in meter.spent.entries) == ["branch", "new", "old"]
    assert meter.spent.unprotected_run_count == 1 and meter.record_fields()["before"].split() == [
        "branch",
        "new",
        "old",
    ]
    again = odometer_run.open_odometer(text, facts, init="random", protects=True)
    assert sum(e.run == "branch" for e in again.registry.entries()) == 1
    assert (tmp_path / "T-branch.odometer" / odometer_lines.LEDGER_FILE).read_bytes() == before
    branch = odometer_run.open_odometer(
        text, facts, init="random", protects=True, odometer_folder=tmp_path / "T-branch.odometer"
    )
    assert {"new", "old"} < {e.run for e in branch.spent.entries}
    with pytest.raises(ValueError, match=r"has one already, .*T\.jsonl\.odometer; name that"):
        odometer_run.open_odometer(
            text, facts, init="random", protects=True, odometer_folder=tmp_path / "elsewhere"
        )


def test_a_signing_key_that_is_a_link_to_nothing_is_refused_before_a_line_is_written(
    tmp_path, registry
):
    text = tmp_path / "T.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), text)
    own = tmp_path / "T.jsonl.odometer"
    add(own, "old", corpus=corpora.hash_corpus(text))
    (own / "signing.key").symlink_to(tmp_path / "nothing")
    before = (own / odometer_lines.LEDGER_FILE).read_bytes()
    facts = {n: v for n, v in FACTS.items() if n not in ("corpus", "events")}
    with pytest.raises(FileNotFoundError, match=r"No such file .*signing\.key"):
        odometer_run.open_odometer(text, facts, init="random", protects=True)
    assert (own / odometer_lines.LEDGER_FILE).read_bytes() == before
    assert sorted(path.name for path in own.iterdir()) == ["ledger.sqlite", "signing.key"]
    assert not registry.exists()


def test_a_broken_odometer_beside_a_text_is_named_and_stops_the_training(tmp_path, run):
    text = tmp_path / "T.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), text)
    sha = corpora.hash_corpus(text)
    add(tmp_path / "T.jsonl.odometer", corpus=sha)
    for name in "ab":
        add(tmp_path / "T-january.odometer", name, corpus=sha)
    write(tmp_path / "T-january.odometer", lines(tmp_path / "T-january.odometer")[1:])
    words = ["--method", "dpsgd", "--epsilon", 3, "--width", 2, "--epochs", 1]
    code, _, error = run("train", text, *words, "--out", tmp_path / "m")
    assert code == 2 and error.count("\n") == 1 and not (tmp_path / "m").exists()
    assert "T-january.odometer is for this text, too, and cannot be read (entry 1 does not" in error
    assert len(odometer.read_entries(tmp_path / "T.jsonl.odometer")) == 1


def test_no_later_line_of_a_run_says_less(tmp_path):
    """Once: the last line of a run counted, also where an earlier one stated more steps."""
    folder = tmp_path / "c.odometer"
    one, other = SampledGaussian(0.1, 1.0, 80), SampledGaussian(0.2, 1.0, 7)
    add(folder, events=(one, other))
    add(folder, events=(replace(one, steps=30),))
    add(folder, state="finished", events=(replace(one, steps=30), replace(one, steps=10)))
    entries = odometer.read_entries(folder)
    spent = count_private_steps(spending.sum_spending(entries).events)
    assert spent == {(1.0, 0.1): 80, (1.0, 0.2): 7}
    told = spending.report_spending(spending.SpendingHistory(tuple(entries)), delta=1e-5)
    assert told["runs"][0]["epsilon"] == told["together"]["epsilon"]
