"""Kill commands at random moments, run them again, and compare: ``python -m tests.kills``.

Each job first runs undisturbed. Then, at each moment, it is started anew, killed with SIGKILL (the
process itself or, in sweeps, every second time its worker) and run again. Afterwards its files must
be those of the undisturbed run: nothing different, nothing more, nobody left alive. Jobs run in
forks of this process, so that a moment costs no import.
"""

import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil

from confide import __main__ as cli
from crtbook import leakage, runner, runs, secrets
from crtbook.study import Store
from crtlib.text import customersim, jsonl

VARIES = {"seconds", "cpu_seconds", "date", "started", "ended", "sha256", "files", "inputs",
          "odometer", "key", "hmac", "run", "signature", "id", "public_key", "sum"}  # fmt: skip
"""Keys of JSON files that differ from run to run: times, hashes over them, hashes with a key."""
IGNORED = {".lock", "failures"}
ENDED = 15.0
"""Seconds after which a child of a killed process counts as an orphan."""

CRT = runs.CrtStudy(
    method="sgd", model="lstm", gamma=0.5, seed=0, dialogues=20, heldout=10, epochs=2,
    embedding=16, hidden=16, canaries=2, copies=2,
)  # fmt: skip
LEAKAGE = leakage.LeakageStudy(
    method="dpsgd", seed=0, unit="user", dialogues=6, heldout=4, public=12, public_epochs=1,
    epochs=2, snapshots=(1, 2), embedding=8, hidden=8, canaries=2, copies=3, bots=1,
    sampling_probability=0.5,
)  # fmt: skip
SECRETS = secrets.MaskedStudy(
    seed=0, targets="sqrt", scale=2.0, noisy=True, dialogues=40, first=60, secrets=20,
    vocab_size=280, hidden=8, layers=1, context=16, steps=2, batch_size=8,
)  # fmt: skip


# --------------------------------------------------------------------------- jobs
def forked_pool(workers):
    """As the runner's own, but forked: a moment costs no import."""
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(workers, context, runner._leave_with_parent)


def _sweep(*studies):
    def job(_, out):
        runner.process_pool = forked_pool
        assert len(runner.sweep(studies, Store(out), workers=1, progress=False))

    return job


def _command(*args):
    def job(home, out):
        sys.argv = ["crtlib", *(str(a).format(home=home, out=out) for a in args)]
        cli.main()

    return job


CORPUS, MODEL = "{home}/dialogues.jsonl", "{home}/model/run"
JOBS = {
    "train": _command(
        *("train", CORPUS, "--unit", "turn", "--epochs", 2, "--canaries", 2),
        *("--repeatable-noise", "--out", "{out}/run"),
    ),
    "report": _command("report", MODEL, "--corpus", CORPUS, "--reveal", "--out", "{out}/report"),
    "sweep crt": _sweep(*(replace(CRT, seed=s) for s in (0, 1))),
    "sweep leakage": _sweep(*(replace(LEAKAGE, seed=s) for s in (0, 1))),
    "sweep secrets": _sweep(*(replace(SECRETS, seed=s) for s in (0, 1))),
}


# --------------------------------------------------------------------------- one moment
def start(job, home, out):
    """The job in a process of its own, silent; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        log = open(home / "log", "a", buffering=1)  # noqa: SIM115 (it lasts as long as the process)
        os.dup2(log.fileno(), 2)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(log):
            job(home, out)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(code or 0)


def finish(pid):
    """The exit code of a process."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def plain(value):
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in VARIES}
    return [plain(v) for v in value] if isinstance(value, list) else value


def content(folder):
    """All that lies in a folder, by name: JSON without times, other files as they are."""
    out = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if IGNORED.isdisjoint(Path(name).parts):
            raw = path.read_bytes()
            out[name] = plain(json.loads(raw)) if path.suffix == ".json" else raw
            if path.suffix == ".key":
                out[name] = len(raw)  # random
    return out


def kill(pid, worker):
    """Kill a process, or its first child; those that should end now but live on."""
    root = psutil.Process(pid)
    with contextlib.suppress(psutil.Error):
        children = root.children(recursive=True)
        if worker and children:
            children[0].kill()
            return []
    children = root.children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    return children


def moment(job, home, out, after, worker):
    """Start, kill after so many seconds, run again: what happened, as counts."""
    pid = start(job, home, out)
    time.sleep(after)
    running = os.waitpid(pid, os.WNOHANG) == (0, 0)
    facts = Counter(moments=1, finished_before=not running)
    children = []
    if running:
        children = kill(pid, worker)
        finish(pid)
    cells = {p: p.stat().st_mtime_ns for p in out.glob("*.json")}
    _, alive = psutil.wait_procs(children, timeout=ENDED)
    for process in alive:
        process.kill()
    code = finish(start(job, home, out))
    again = sum(p.stat().st_mtime_ns != t for p, t in cells.items() if p.exists())
    refused = running and code != 0  # what was finished before is not trained again
    return facts + Counter(orphans=len(alive), refused=refused, done_again=again)


def compare(reference, out):
    """How many files differ from the undisturbed run's, are lacking, or should not be there."""
    seen = content(out)
    different = [name for name, what in reference.items() if seen.get(name) != what]
    leftovers = sorted(set(seen) - set(reference))
    if different or leftovers:
        print("different", different, "left over", leftovers, file=sys.stderr)
    return Counter(differences=len(different), leftovers=len(leftovers))


COLUMNS = ("moments", "finished_before", "refused", "differences", "leftovers", "orphans",
           "done_again")  # fmt: skip


def run(moments, seed, names=tuple(JOBS), say=print):
    """``moments`` in all, spread over the jobs evenly; the counts of each."""
    rng = random.Random(seed)
    table = {}
    for module in runner.PRELOADED:  # else each fork imports what torch puts off,
        importlib.import_module(module)
    assert all(study.key for study in (CRT, LEAKAGE, SECRETS))  # and reads the corpus' people
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        jsonl.write_jsonl(customersim.simulate_corpus(40, 0, "paper"), home / "dialogues.jsonl")
        assert finish(start(JOBS["train"], home, home / "model")) == 0, (home / "log").read_text()
        for k, name in enumerate(names):
            began = time.perf_counter()
            assert finish(start(JOBS[name], home, home / name)) == 0, (home / "log").read_text()
            lasts = time.perf_counter() - began
            reference, table[name] = content(home / name), Counter()
            for i in range(k, moments, len(names)):
                out = home / f"{name} {i}"
                worker = name.startswith("sweep") and i % 2 == 1
                facts = moment(JOBS[name], home, out, rng.uniform(0, lasts), worker)
                table[name] += facts + compare(reference, out)
                shutil.rmtree(out)
            say(f"{name:>14}  " + "  ".join(f"{c} {table[name][c]}" for c in COLUMNS))
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = run(options.moments, options.seed, say=(lambda _: None) if options.json else print)
    total = sum(table.values(), Counter())
    if options.json:
        print(json.dumps(total))
    else:
        print(f"{'all':>14}  " + "  ".join(f"{c} {total[c]}" for c in COLUMNS))
    bad = ("refused", "differences", "leftovers", "orphans", "done_again")
    raise SystemExit(any(total[c] for c in bad))


if __name__ == "__main__":
    main()
