"""Fail, or kill, commands before calls that change the disk: ``python -m tests.kills.disk_faults``.

Of the whole process, SQLite, DuckDB, Arrow and torch included: a library in C is preloaded
(``disk_faults.c``; ``cc`` compiles it). Of each command the calls below its folder are counted.
Then it is started anew and, before one of them, killed, told once that the disk is broken (EIO), or
told from there on that it is full (ENOSPC). It must end with exit code 3 and one line that says so,
or go on where nothing depends on that call, and the same command must succeed afterwards: with the
files of an undisturbed run, and each run in the ledger once. Of the calls ``SAMPLE`` are taken
evenly, or all with ``--all``; ``--fault`` names one fault, so that two may run side by side.
"""

import argparse
import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from confide import odometer, text_registry
from confide.labels import drawing  # noqa: F401 (imported once, before forks)
from confide.release import certify
from confide.reports import leakage, screening_page  # noqa: F401
from confide.text import ingest  # noqa: F401
from confide.training import train_on_corpus  # noqa: F401
from crtlib.text import customersim, jsonl
from tests.kills import __main__ as kills
from tests.kills import test_every_call as calls

SOURCE = Path(__file__).with_suffix(".c")
SAMPLE = 6
FAULTS = {"kill": -1, "EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
SAYS = {"EIO": "input/output error", "ENOSPC": "no space left on device"}
TINY = ("--unit", "turn", "--epochs", 2, "--width", 4, "--repeatable-noise")
COMMANDS = {
    "ingest": ("ingest", "{home}/messages.csv", "--yes", "--out", "{home}/corpus"),
    "screen": ("screen", "{home}/c.jsonl", "--policy", "regex:customersim", "--keep-ids",
               "--out", "{home}/s"),
    "train": ("train", "{home}/c.jsonl", *TINY, "--out", "{home}/m"),
    "certify": ("certify", "{home}/m", "--out", "{home}/m/page.html",
                "--secrets-per-person", 2),
    "report": ("report", "{home}/m", "--corpus", "{home}/c.jsonl", "--out", "{home}/r"),
    "forget": ("account", "--odometer", "{home}/c.jsonl.odometer", "--forget"),
}  # fmt: skip
OF_A_MODEL = ("certify", "report", "forget")
"""Commands that begin with a model and its ledger."""
FINISHED = re.compile("is a finished model|page.html exists; choose another name")
"""What is said where nothing was left to do; the files are compared all the same."""
OUTCOMES = ("told", "went on", "killed", "wrong code", "not one line", "rerun", "files", "ledger")
BAD = OUTCOMES[3:]


def compiled(folder):
    """The library that is preloaded; None where there is no compiler."""
    if not (cc := shutil.which("cc")):
        return None
    out = Path(folder) / "disk_faults.so"
    subprocess.run([cc, "-O1", "-shared", "-fPIC", "-o", out, SOURCE, "-ldl"], check=True)
    return out


def base(home, *, trained):
    """What the commands read, in a folder."""
    home.mkdir()
    os.environ["CRTLIB_REGISTRY"] = str(home / "registry")
    corpus = customersim.simulate_corpus(14, 0, "paper")
    jsonl.write_jsonl(corpus, home / "c.jsonl")
    rows = [f'{d.user},{d.id},"{t.text}"' for d in corpus.dialogues for t in d.turns]
    (home / "messages.csv").write_text("\n".join(["user,thread,text", *rows]) + "\n")
    if trained:
        words = [word for word in COMMANDS["train"] if word != "--repeatable-noise"]
        code = kills.finish(kills.start(kills._command(*words), home, home))
        assert code == 0, (home / "log").read_text()
    return home


def play(library, name, home, error, at):
    """Run a command in a fork in which a call fails; its exit code, and the number of calls."""
    os.environ["CRTLIB_REGISTRY"] = str(home / "registry")
    job, told = kills._command(*COMMANDS[name]), home.parent / "calls"

    def watched(*_):
        library.plan_fault(os.fsencode(f"{home}/"), error, at)
        try:
            job(home, home)
        finally:
            count = library.count_calls()
            library.plan_fault(b"", 0, 0)
            told.write_text(str(count))

    (home.parent / "log").write_text("")  # not on the disk that breaks
    code = kills.finish(kills.start(watched, home.parent, home))
    return code, int(told.read_text()) if code >= 0 else at


def judge(name, fault, code, home):
    """What an interrupted command came to."""
    said = (home.parent / "log").read_text()
    if fault == "kill":
        return "killed" if code == -9 else "wrong code"
    if code in (0, 4):
        return "went on"
    if code != 3:
        return "wrong code"
    # SQLite tells a full disk from a broken one where it writes, and nowhere else.
    told = SAYS[fault] in said or ".sqlite: input/output error" in said
    one = told and said.count("\n") == 1 and said.startswith("crtlib: error: ")
    return "told" if one else "not one line"


def again(library, name, home, whole):
    """What is wrong after the same command, undisturbed; None: nothing."""
    code, _ = play(library, name, home, 0, 0)
    said = (home.parent / "log").read_text()
    if code != 0 and not (code == 2 and FINISHED.search(said)):
        return "rerun"
    one, other = calls.kept(whole), calls.kept(home)
    if calls.names(home) != calls.names(whole) or any(one[n] != other[n] for n in one):
        return "files"
    try:
        if name == "train":
            calls.ledger(home, name)
        if name == "certify":
            found = certify.compare_certificate_with_run(home / "m", home / "m" / "page.html")[0]
            assert found is None, found
        if name == "forget":
            entries = odometer.read_entries(home / "c.jsonl.odometer")
            registry = text_registry.Registry(home / "registry")
            assert len(entries) == len(registry.entries()) == 2
            assert registry.find_related_texts(entries[0].corpus).keys() == {entries[0].corpus}
    except (AssertionError, ValueError) as error:
        print(f"ledger: {error!r}", flush=True)
        return "ledger"
    return None


def run(library, names, every, faults=tuple(FAULTS), say=print):
    """How often each fault came to what, by command."""
    table = {}
    with tempfile.TemporaryDirectory() as place:
        place = Path(os.path.realpath(place))
        for name in names:
            given = place / f"given {name}"
            base(given, trained=name in OF_A_MODEL)
            whole = place / "home"  # a path stands in some files: it is the same for all
            shutil.copytree(given, whole)
            code, count = play(library, name, whole, 0, 0)
            assert code in (0, 4) and count > 5, (name, code, count, (place / "log").read_text())
            shutil.copytree(whole, place / "whole", symlinks=True)
            step = 1 if every else max(1, count // SAMPLE)
            for fault in faults:
                came = table[name, fault] = Counter()
                for at in range(1 + step // 2, count + 1, step):
                    shutil.rmtree(whole)
                    shutil.copytree(given, whole, symlinks=True)
                    code, _ = play(library, name, whole, FAULTS[fault], at)
                    what = judge(name, fault, code, whole)
                    first = (place / "log").read_text().strip()[-300:]
                    wrong = again(library, name, whole, place / "whole")
                    came[what] += 1
                    came[wrong or "fine"] += 1
                    if wrong or what in BAD:
                        last = (place / "log").read_text().strip()[-300:]
                        say(f"  {name} {fault} at {at}: {what}, {wrong} | {code} {first} | {last}")
                told = "  ".join(f"{o} {came[o]}" for o in OUTCOMES)
                say(f"{name:>8} {fault:>6} of {count} calls  {told}", flush=True)
            shutil.rmtree(whole)
            shutil.rmtree(place / "whole")
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="before every call")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="of these alone")
    parser.add_argument("names", nargs="*", help=", ".join(COMMANDS))
    options = parser.parse_args()
    if "disk_faults" not in os.environ.get("LD_PRELOAD", ""):
        with tempfile.TemporaryDirectory() as folder:
            if (library := compiled(folder)) is None:
                print("skipped: there is no cc to compile disk_faults.c with")
                return
            words = [sys.executable, "-m", "tests.kills.disk_faults", *sys.argv[1:]]
            done = subprocess.run(words, env={**os.environ, "LD_PRELOAD": str(library)})
            raise SystemExit(done.returncode)
    library = ctypes.CDLL(None)
    faults = options.fault or list(FAULTS)
    table = run(library, options.names or COMMANDS, options.all, faults)
    total = sum(table.values(), Counter())
    print(json.dumps({o: total[o] for o in OUTCOMES}))
    raise SystemExit(any(total[o] for o in BAD))


if __name__ == "__main__":
    main()
