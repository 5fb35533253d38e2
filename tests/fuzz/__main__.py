"""Give every command what nobody should: ``python -m tests.fuzz``.

A case is a call that is right but for one value, or for one file of those that it reads: by the
forms of :mod:`tests.fuzz.home`, damaged by the kinds of :mod:`tests.fuzz.damage`. It runs in a fork
of this process with limits on CPU time, memory and file size, on a copy of its files. It must
answer, or refuse in one line with exit code 2 (3 where the machine is at fault, or a file is
damaged), and write nothing then. It never changes a file that it was given, and nothing that it
says or writes beside its results shows the name that is planted in all text.

Of every 15 cases 6 are of options, each in turn; 7 of files, each with each command in turn; 2 of
notebook parameters, four in each. The seed is the day's and is printed with the number of a case:
``python -m tests.fuzz --seed 20261127 --case 17`` plays that one alone.
"""

import argparse
import contextlib
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from datetime import date
from pathlib import Path

import psutil

from confide import __main__ as cli
from confide.release import certify, verify  # noqa: F401 (imported once, before forks)
from confide.reports import leakage  # noqa: F401
from confide.text import ingest  # noqa: F401
from confide.training import secret_plans, train_on_corpus  # noqa: F401
from crtbook import __main__ as companion
from crtbook import runner, sweeps  # noqa: F401
from crtbook.settings import SECTIONS, list_leaves, read_parameters
from crtcourse import attack  # noqa: F401
from crtlib.checks import ParameterError
from crtlib.screening import tagger  # noqa: F401
from tests.fuzz import damage, home
from tests.fuzz.damage import PLANTED
from tests.fuzz.values import NUMBERS, ODD, WORDS, files

CPU, MEMORY, FILE = 60, 6 << 30, 64 << 20
"""Limits of a case: CPU seconds, bytes of memory, bytes of a file."""
SECONDS = {"claims": 90, "lab": 240}
"""CPU seconds of the commands whose work has one size: half a minute, and two models to train."""
IDLE = 90
"""Seconds without any CPU time after which a case waits for ever, on however busy a machine."""
PARAMETERS_OF_A_CASE = 4
SHARES = "option option option option option option file file file file file file file name name"
MODEL_WRITES = re.compile("^it writes: .*$", re.MULTILINE)
"""What a model that was trained with noise writes is its answer, as that of ``generate`` is."""
FAULTS = ("traceback", "several lines", "hang", "touched", "wrote", "named", "believed")
OUTCOMES = ("refused", "answered", *FAULTS)
CHANGED = (".odometer/", "registry/", "labels/", ".shards", ".key")
"""Of what a call is given, what it may change where it answers: ledgers, keys, labels."""
OF_TORCH = "torchinductor"
"""An empty folder among temporary files."""

# --------------------------------------------------------------------------- calls
GOOD = {  # values with which a call is right, where its type alone does not say
    "unit": "turn", "delta": "1e-5", "epsilon": "1", "batch_size": "10", "points": "100",
    "epochs": "1", "dialogues": "12", "steps": "10", "prior": "0.01", "posterior": "0.1",
    "corpus": "talk.jsonl", "model": "model", "source": "messages.csv", "run": "model",
    "labels": "labels", "file": "done.json", "policy": "cautious", "project": "project",
    "user": "user-14333",
}  # fmt: skip
LABELLED = {"label", "card", "advise"}
"""Commands that read the corpus of the labels."""
NAMES = {"sweep": "games", "convert": "customersim"}
ALWAYS = {"sweep": ["--dry-run"], "train": ["--epochs", "1", "--canaries", "0"],
          "tagger": ["--epochs", "1"], "convert": ["--limit", "3"]}  # fmt: skip
NEEDS = {"account": {"epsilon"}, "train": {"out"}, "protect": {"prior", "posterior"}}
LONG = {("lab",)}
"""Commands of which a right call takes too long: they get bad values only."""


COMMANDS = {
    tuple(words.split()): command
    for words, command in (cli.CRTLIB_PROGRAM.all_commands() | companion.app.all_commands()).items()
}
"""Each command by its words, also those in a group."""


def options(words):
    """The options of a command: its name, how it is said (None: by place), whether it must be
    given, and its type."""
    command = COMMANDS[words]
    usual = {o.name for o in command.list_options({}) if o.is_required} | NEEDS.get(words[0], set())
    return [
        (
            o.name,
            None if o.is_positional else o.flag,
            o.name in usual,
            "path" if o.is_path else o.node.get("items", o.node).get("type"),
        )
        for o in command.list_options(None)
    ]


def call(name, changes):
    """The words of a call in which ``changes`` (by parameter) stand for what is right."""
    words, places = [*name, *ALWAYS.get(name[0], [])], []
    for key, flag, needed, kind in options(name):
        if key not in changes and not needed:
            continue
        right = NAMES.get(name[0], "x") if key == "name" else GOOD.get(key, "1")
        right = "corpus" if key == "corpus" and name[0] in LABELLED else right
        value = changes.get(key, "out" if key == "out" else right)
        if kind == "boolean":
            words.append(flag)
        elif flag is None:
            places.append(value)
        else:
            words.append(f"{flag}={value}")
    return [*words, "--", *places]


def values(kind, bad):
    """Bad values of a type."""
    if kind == "path":
        return [*map(str, bad), "", "/dev/full", "/dev/null", "nowhere", f"{bad[0]}/in/a/file"]
    return NUMBERS + WORDS if kind in ("integer", "number") else WORDS + NUMBERS[:6]


def places():
    """Each option of each command, with its type."""
    return [
        (name, key, kind)
        for name in sorted(COMMANDS)
        for key, _, _, kind in options(name)
        if kind != "boolean" or name not in LONG
    ]


# --------------------------------------------------------------------------- one case
def state(folder):
    """What lies in a folder: each file's size, time, mode and number; of a ledger its lines and the
    labels that were used, as it is opened to be read. A folder's time is that of its names."""
    rows = {}
    for path in folder.rglob("*"):
        s = path.lstat()
        told = (s.st_mode, s.st_size, s.st_mtime_ns, s.st_ino)
        if path.suffix == ".sqlite" and path.is_file():
            told = (s.st_mode, lines_of(path))
        rows[str(path.relative_to(folder))] = told if not path.is_dir() else (s.st_mode,)
    return rows


def lines_of(path):
    """How many lines a ledger has, and judgements the registry of labels; None: it cannot be
    read."""
    base = sqlite3.connect(path)
    counts = []
    for table in ("lines", "judged"):
        with contextlib.suppress(sqlite3.Error):
            counts.append(base.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    base.close()
    return counts


def verifier():
    sys.argv[1:2] = []
    sys.exit(verify.main())


def child(words, place):
    """Run a command line here, in a fork, with limits; never returns."""
    os.setsid()
    os.chdir(place / "work")
    for fd, name, how in ((0, "/dev/null", os.O_RDONLY), (1, place / "stdout", os.O_CREAT | 1),
                          (2, place / "stderr", os.O_CREAT | 1)):  # fmt: skip
        os.dup2(os.open(name, how, 0o600), fd)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, "rw"[i > 0]) for i in range(3))
    os.environ |= {
        "CRTLIB_REGISTRY": str(place / "work" / "registry"),
        "TMPDIR": str(place / "tmp"),
    }
    tempfile.tempdir = None
    cpu = SECONDS.get(words[0], CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    sys.argv = ["crtlib", *words]
    code = 1
    try:
        book = words[0] in companion.app.names
        (verifier if words[0] == "verify" else companion.main if book else cli.main)()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(pid):
    """The exit code of a fork; it is killed where it waits, and no CPU time passes."""
    last, since = None, time.monotonic()
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        with contextlib.suppress(psutil.Error):
            now = sum(psutil.Process(pid).cpu_times()[:4])
            last, since = (now, time.monotonic()) if now != last else (last, since)
        if time.monotonic() - since > IDLE:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # who is left of its workers
    return os.waitstatus_to_exitcode(done[1])


def outcome(words, place, honest=True, other=None):
    """What a call in ``place/work`` came to, and what it said. ``honest``: what it verifies may be
    as it was signed. ``other``: a folder in which nothing may change."""
    (place / "tmp").mkdir()
    before, kept = state(place / "work"), other and state(other)
    pid = os.fork()
    if pid == 0:
        try:
            child(words, place)
        finally:
            os._exit(1)  # whatever fails: a fork that returned would go on as this process
    code = ended(pid)
    out, said = ((place / f"std{n}").read_text(errors="replace") for n in ("out", "err"))
    after = state(place / "work")
    new = sorted({*after} - {*before})
    new += [name for name in state(place / "tmp") if not name.startswith(OF_TORCH)]
    changed = [name for name, told in before.items() if after.get(name) != told]
    told = "" if words[0] == "generate" else MODEL_WRITES.sub("", out)
    spoken = told + said
    refused = code in (2, 3)
    changed = [name for name in changed if not may_change(name, refused)]
    if any(word in text for text in (spoken, *new) for word in PLANTED.split()):
        return "named", spoken
    if other and (state(other) != kept or (place / "work" / "ran").exists()):
        return "touched", said
    if code < 0:
        return "hang", f"{signal.Signals(-code).name} {said}"
    if code == 1 or "Traceback" in said:
        return "traceback", said
    if changed:
        return "touched", f"{changed[:5]} {said}"
    if words[0] == "verify":
        fault = "several lines" if out.count("\n") != 1 or said else ""
        fault = fault or ("believed" if code == 0 and not honest else "")
        return fault or ("answered", "refused")[code == 4], out + said
    if refused:
        one = said.startswith(("crtlib: error: ", "crtbook: error: ")) and said.count("\n") == 1
        what = "wrote" if new else "refused" if one else "several lines"
        return what, f"{new[:5]} {said}" if new else said
    return "answered", said


def may_change(name, refused):
    return not refused and any(part in f"{name}/" for part in CHANGED)


def apart(make, *args):
    """Call it in a fork: threads that it starts would be held for ever in the forks of cases."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            make(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, (make, args)


def damaged(work, file, form, kind, sealed, coin):
    """Damage a file, and have it signed again."""
    damage.apply(work / file, form, kind, coin)
    if sealed and kind not in damage.NODES:
        with contextlib.suppress(Exception):  # it is no JSON any more
            home.seal_again(work, work / file)


def in_place(what, place, given):
    """Copy what the commands read, and damage ``what`` the case says; the words of its call, and
    whether the copy may be as it was signed."""
    work = shutil.copytree(given, place / "work", symlinks=True)
    if what[0] == "option":
        return call(*what[1:]), True
    _, file, form, kind, line, sealed, coin = what
    apart(damaged, work, file, form, kind, sealed, coin)
    other = kind in damage.NODES or (work / file).read_bytes() != (given / file).read_bytes()
    same = sealed or kind in damage.NODES or form == "json" or not other
    return [word.format(file=file, out="out") for word in line.split()], same


def parameter(section, name, value):
    """What became of a notebook's parameter."""
    try:
        read_parameters({name: value}, section)
    except ParameterError as error:
        said = str(error)
        return "refused" if "\n" not in said and len(said) < 2000 else "several lines"
    except Exception:
        return "traceback"
    return "answered"


# --------------------------------------------------------------------------- all
class Cases:
    """The cases of a seed by their numbers, from 0. ``given`` holds what the commands read; in
    ``other`` bad files and folders are made for their options."""

    def __init__(self, start, given, other):
        self.start, self.given, self.other, self.bad = start, given, other, files(other)
        coin = random.Random(start)
        named = [(s, n) for s, c in SECTIONS.items() for n, _ in list_leaves(c)]
        self.turns = {"option": places(), "file": home.doors(), "name": named}
        for row in self.turns.values():
            coin.shuffle(row)

    def case(self, number):
        """Of what kind a case is, and all that it needs: the same whenever it is asked for."""
        coin, shares = random.Random(f"{self.start} {number}"), SHARES.split()
        kind, (rounds, at) = shares[number % 15], divmod(number, 15)
        turn = rounds * shares.count(kind) + shares[:at].count(kind)
        row = self.turns[kind]
        if kind == "name":
            turn *= PARAMETERS_OF_A_CASE
            some = [row[(turn + k) % len(row)] for k in range(PARAMETERS_OF_A_CASE)]
            return kind, [(*one, coin.choice([*NUMBERS, *WORDS, *ODD])) for one in some]
        one = row[turn % len(row)]
        if kind == "file":
            name, form, line = one
            return kind, name, form, damage.choose(form, coin), line, coin.random() < 0.5, coin
        name, key, of = one
        changes = {key: coin.choice(values(of, self.bad))}
        if coin.random() < 0.2:
            _, more, of = coin.choice([place for place in row if place[0] == name])
            if {key, more} != {"out", "force"}:  # what is forced is replaced
                changes.setdefault(more, coin.choice(values(of, self.bad)))
        return kind, name, changes

    def play(self, number):
        """What a case came to, what it was, and what was said."""
        what = self.case(number)
        if what[0] == "name":
            came = [(parameter(*one), one) for one in what[1]]
            worst = max(came, key=lambda row: OUTCOMES.index(row[0]))
            return worst[0], str(worst[1][:2]), repr(worst[1][2])[:200]
        with tempfile.TemporaryDirectory() as folder:
            words, honest = in_place(what, place := Path(folder), self.given)
            came, said = outcome(words, place, honest, self.other)
        damaged = what[1:4] if what[0] == "file" else ()
        return came, " ".join(w[:200] for w in [*words, *map(str, damaged)]), said


@contextlib.contextmanager
def prepared():
    """Two folders: what the commands read, and one for what is bad, with a good model."""
    with tempfile.TemporaryDirectory() as folder:
        given, other = Path(folder) / "given", Path(folder) / "other"
        given.mkdir()
        other.mkdir()
        apart(home.make, given)
        (other / "model").symlink_to(given / "model")
        yield given, other


def run(count, start, numbers=None, say=print):
    """So many cases of a seed: how many came to what, and the bad ones."""
    table, bad, most = Counter(), [], 0.0
    with prepared() as folders:
        cases = Cases(start, *folders)
        for number in range(count) if numbers is None else numbers:
            began = sum(os.times()[2:4])
            came, where, said = cases.play(number)
            most = max(most, sum(os.times()[2:4]) - began)
            table[came] += 1
            if table.total() % 50 == 0:
                print(dict(table), f"longest {most:.1f} CPU s", file=sys.stderr, flush=True)
            if came in FAULTS:
                bad.append((came, where, said))
            if came in FAULTS or numbers is not None:
                again = f"python -m tests.fuzz --seed {start} --case {number}"
                say(f"{came}: {where} | {said[-1500:].strip()}\n  {again}", flush=True)
    return table, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=900)
    parser.add_argument("--seed", type=int, default=int(date.today().strftime("%Y%m%d")))
    parser.add_argument("--case", type=int, action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    table, bad = run(options.cases, options.seed, options.case)
    print(f"cases {table.total()}: " + ", ".join(f"{table[o]} {o}" for o in OUTCOMES))
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
