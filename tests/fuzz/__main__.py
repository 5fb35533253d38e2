"""Give every command and every notebook parameter what nobody should: ``python -m tests.fuzz``.

A case is a command whose call is right but for one or two values, or whose file is bad. It runs in
a fork of this process with limits on time, memory and file size. It must answer, or refuse in one
line with exit code 2 or 3, and write nothing then; it never changes a file that it was given. A
notebook parameter is accepted or refused in one line. Each option and each parameter has a case;
the other cases are drawn by hypothesis, with one bad value or two.
"""

import argparse
import gzip
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from confide import __main__ as cli
from confide.release import certify  # noqa: F401
from confide.reports import leakage  # noqa: F401
from confide.text import ingest  # noqa: F401
from confide.training import secret_plans, train_on_corpus  # noqa: F401
from crtbook import __main__ as companion
from crtbook import runner, sweeps  # noqa: F401 (imported once, before forks)
from crtbook.settings import SECTIONS, leaves, parameters
from crtcourse import attack  # noqa: F401
from crtlib.checks import ParameterError
from crtlib.screening import tagger  # noqa: F401
from crtlib.text import customersim, jsonl

CPU, MEMORY, FILE = 10, 6 << 30, 64 << 20
"""Limits of a case: CPU seconds, bytes of memory, bytes of a file."""
SECONDS = {"claims": 90, "lab": 240}
"""CPU seconds of the commands whose work has one size: half a minute, and two models to train."""
WALL = 12
"""Seconds for each of the CPU's: the machine may be busy, and who only waits hangs."""

# --------------------------------------------------------------------------- values
NUMBERS = [
    "nan", "inf", "-inf", "-0.0", "0", "-1", "1e300", "-1e300", "1e-320", "1e308", "1e23",
    "0.9999999999", "1000000000000000000000000000000", "9223372036854775808", "0x10", "1_0", "1,5",
]  # fmt: skip
WORDS = [
    "", " ", "x", "é", "\udcff", "a" * 5000, "../..", "=1+1", "[" * 3000, "{}", "null", "-", "--",
    "regex:", "regex:none.toml", "list:", "tagger:.", "ner:.", "oracle+", "+", "%2B", "cuda:99",
    "turn\nturn", "hub:", "hub:x", "<b>", "; rm x", "$HOME", "*", "user", "gammas=[[[[", "seeds=-1",
    "shapes.lstm.hidden=0", "=", "seeds=1e300", "seeds=nan", "corpora=['x']",
]  # fmt: skip
DIALOGUE = {"id": "d", "user": "u", "turns": [
    {"speaker": "USR", "text": "I am Ada", "secrets": [{"kind": "name", "start": 5, "end": 8}]},
]}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "user", "turns", "text", "kind"]), inner)
    ),
    max_leaves=6,
)


@st.composite
def lines(draw):
    """A good dialogue in which one place holds another value, or is missing."""
    tree = json.loads(json.dumps(DIALOGUE))
    places = []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(tree)
    node, key = draw(st.sampled_from(places))
    if draw(st.booleans()):
        node[key] = draw(JSON)
    else:
        del node[key]
    return (json.dumps(tree) + "\n").encode("utf-8", "surrogatepass")


def files(home):
    """Bad files and folders, by name, in a folder of their own."""
    good = json.dumps(DIALOGUE).encode()
    folder = home / "bad"
    folder.mkdir()
    for name, content in {
        "empty.jsonl": b"", "blank.jsonl": b"\n\n", "binary.jsonl": os.urandom(500),
        "null.jsonl": b"null\n", "deep.jsonl": b"[" * 10**5, "half.jsonl": good[:40],
        "twice.jsonl": good + b"\n" + good, "utf16.jsonl": good.decode().encode("utf-16"),
        "surrogate.jsonl": good.replace(b"Ada", b"\\ud800"), "nul.jsonl": b"\0" * 1000,
        "kind.jsonl": good.replace(b'"name"', b'"\\udfff"'), "digits.jsonl": b"9" * 10**5,
        "line.jsonl": b"a" * 10**6, "number.jsonl": b'{"id": 1e999, "user": NaN}',
        "torn.jsonl.gz": gzip.compress(good)[:-9], "not.jsonl.gz": b"\x1f\x8bnothing",
        "table.csv": b"example,secret\n1,=1+1\n", "headerless.csv": b"mail-17,4111-1111\n",
        "nan.csv": b"example,secret,p,r\n1,a,nan,1e-320\n", "wide.csv": b"," * 10**5,
        "odd.csv": b'example,secret\n"1,a\n', "fake.parquet": b"PAR1junkPAR1",
        "list.toml": b"[", "pattern.toml": b"[a]\npattern = '(a+)+$'\n",
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.jsonl")
    os.mkfifo(folder / "pipe.csv")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    (folder / "folder" / "foreign").touch()
    model = {"model.safetensors": struct.pack("<Q", 1 << 60) + b"{}", "model.json": b"{}"}
    _model(folder / "giant_header", model)
    _model(folder / "empty_json", {"model.safetensors": b"", "model.json": b""})
    _model(folder / "list_json", {**model, "model.json": b"[1]", "experiment.json": b"[]"})
    _model(folder / "pickled", {"pytorch_model.bin": pickle.dumps({"a": 1}), "config.json": b"{}"})
    remote = {"auto_map": {"AutoModelForCausalLM": "code.Model"}, "model_type": "own"}
    _model(folder / "remote", {
        **model, "config.json": json.dumps(remote).encode(),
        "code.py": b"open('ran', 'w')\nModel = None\n",
    })  # fmt: skip
    (folder / "remote" / "model.json").unlink()
    _model(folder / "marker", {"crtlib.json": b'{"schema": "crtlib/output/2"}'})
    for name in ("tokenizer.json", "model.json", "model.safetensors", "experiment.json"):
        for how, content in (("empty", b""), ("list", b"[]"), ("deep", b"[" * 10**5)):
            shutil.copytree(home / "model", folder / f"{name}_{how}")
            (folder / f"{name}_{how}" / name).write_bytes(content)
    huge = json.loads((home / "model" / "model.json").read_text()) | {"layers": 10**9}
    shutil.copytree(home / "model", folder / "huge")
    (folder / "huge" / "model.json").write_text(json.dumps(huge))
    for key, value in {"n_layer": 10**9, "n_embd": 2**24, "n_positions": 10**12}.items():
        config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, key: value}
        _model(folder / f"config_{key}", {
            "config.json": json.dumps(config).encode(), "tokenizer.json": b"{}",
            "model.safetensors": (home / "model" / "model.safetensors").read_bytes(),
        })  # fmt: skip
    return sorted(folder.iterdir())


def _model(folder, content):
    folder.mkdir()
    for name, raw in content.items():
        (folder / name).write_bytes(raw)


ODD = [None, True, -1, 0, 1e308, float("nan"), float("-inf"), 10**400, [], [[]], {}, {"a": 1}, b"x"]
"""Values of other types, for parameters of a notebook."""

# --------------------------------------------------------------------------- calls
GOOD = {  # values with which a call is right, where its type alone does not say
    "unit": "turn", "delta": "1e-5", "epsilon": "1", "batch_size": "10", "points": "100",
    "epochs": "1", "dialogues": "12", "steps": "10", "prior": "0.01", "posterior": "0.1",
    "corpus": "{home}/dialogues.jsonl", "model": "{home}/model",
    "source": "{home}/dialogues.jsonl", "run": "{home}/model",
}  # fmt: skip
NAMES = {"sweep": "games", "convert": "customersim"}
ALWAYS = {"sweep": ["--dry-run"], "train": ["--epochs", "1", "--canaries", "0"],
          "tagger": ["--epochs", "1"], "convert": ["--limit", "3"]}  # fmt: skip
NEEDS = {"account": {"epsilon"}, "train": {"out"}, "protect": {"prior", "posterior"}}
LONG = {("lab",)}
"""Commands of which a right call takes too long: they get bad values only."""


COMMANDS = {
    tuple(words.split()): command
    for words, command in (cli.CRTLIB_PROGRAM.every() | companion.app.every()).items()
}
"""Each command by its words, also those in a group."""


def options(words):
    """The options of a command: its name, how it is said (None: by place), whether it must be
    given, and its type."""
    command = COMMANDS[words]
    usual = {o.name for o in command.known({}) if o.needed} | NEEDS.get(words[0], set())
    return [
        (
            o.name,
            None if o.by_place else o.flag,
            o.name in usual,
            "path" if o.is_path else o.node.get("items", o.node).get("type"),
        )
        for o in command.known(None)
    ]


def call(name, changes, home, out):
    """The words of a call in which ``changes`` (by parameter) stand for what is right."""
    words, places = [*name, *ALWAYS.get(name[0], [])], []
    for key, flag, needed, kind in options(name):
        if key not in changes and not needed:
            continue
        right = NAMES.get(name[0], "x") if key == "name" else GOOD.get(key, "1")
        value = changes.get(key, str(out) if key == "out" else right.replace("{home}", str(home)))
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


@st.composite
def cases(draw, bad):
    """A command with one bad value or two, or with a bad line in its corpus."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    known = [place for place in places() if place[0] == name]
    changes = {}
    if draw(st.integers(0, 4)) == 0 and any(key == "corpus" for _, key, _ in known):
        changes["corpus"] = draw(lines())
    for _, key, kind in draw(st.lists(st.sampled_from(known), min_size=1, max_size=2)):
        changes.setdefault(key, draw(st.sampled_from(values(kind, bad))))
    return name, changes


# --------------------------------------------------------------------------- one case
def state(home):
    """What must not change: each file's size, time and mode. An odometer lies beside its corpus."""
    rows = {}
    for path in home.rglob("*"):
        if ".odometer" in str(path):
            continue
        s = path.lstat()
        if path.is_dir() and not path.is_symlink():
            s = os.stat_result((s.st_mode, s.st_ino, *[0] * 8))  # its time is that of its names
        rows[str(path)] = (s.st_size, s.st_mtime, s.st_mode, s.st_ino)
    return rows


def child(words, work):
    """Run a command line here, in a fork, with limits; never returns."""
    os.chdir(work)
    for fd, name, how in ((0, "/dev/null", os.O_RDONLY), (1, work / "stdout", os.O_CREAT | 1),
                          (2, work / "stderr", os.O_CREAT | 1)):  # fmt: skip
        os.dup2(os.open(name, how, 0o600), fd)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, "rw"[i > 0]) for i in range(3))
    cpu = SECONDS.get(words[0], CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    sys.argv = ["crtlib", *words]
    code = 1
    try:
        (companion if words[0] in companion.app.names else cli).main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def outcome(words, home, work):
    """What a call came to, and what it said."""
    before = state(home)
    pid = os.fork()
    if pid == 0:
        try:
            child(words, work)
        finally:
            os._exit(1)  # whatever fails: a fork that returned would go on as this process
    began = time.monotonic()
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() - began > WALL * SECONDS.get(words[0], CPU):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(ended[1])
    said = (work / "stderr").read_text(errors="replace")
    left = [p for p in work.rglob("*") if p.name not in ("stdout", "stderr")]
    if state(home) != before or (home / "bad" / "remote" / "ran").exists():
        return "touched", said
    if code < 0:
        return "hang", said
    if code == 1 or "Traceback" in said:
        return "traceback", said
    if code in (2, 3):
        one = said.startswith(("crtlib: error: ", "crtbook: error: ")) and said.count("\n") == 1
        return ("wrote" if left else "refused" if one else "several lines"), said
    return "answered", said


def play(name, changes, home):
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / "work"
        work.mkdir()
        if isinstance(changes.get("corpus"), bytes):
            (Path(place) / "given.jsonl").write_bytes(changes["corpus"])
            changes = changes | {"corpus": str(Path(place) / "given.jsonl")}
        words = call(name, changes, home, work / "out")
        return (*outcome(words, home, work), words)


def parameter(section, name, value):
    """What became of a notebook's parameter."""
    try:
        parameters({name: value}, section)
    except ParameterError as error:
        return "refused" if "\n" not in str(error) else "several lines"
    except Exception:
        return "traceback"
    return "answered"


# --------------------------------------------------------------------------- all
OUTCOMES = ("refused", "answered", "traceback", "several lines", "hang", "touched", "wrote")


def setup(home):
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0, "paper"), home / "dialogues.jsonl")
    (home / "table.csv").write_text("example,secret\n1,a\n1,b\n2,a\n3,c\n")
    words = ["train", str(home / "dialogues.jsonl"), "--unit", "turn", "--epochs", "1"]
    work = Path(tempfile.mkdtemp(dir=home))
    said = outcome([*words, "--canaries", "0", "--out", str(work / "model")], home / "none", work)
    assert said[0] == "answered", said
    shutil.move(work / "model", home / "model")
    shutil.rmtree(work)


def run(count, start=0, say=print):
    """So many cases; how many came to what, and the bad ones. An even half of them goes over all
    options and parameters in turn, as far as it reaches."""
    table, bad = Counter(), []

    def note(what, where, said):
        table[what] += 1
        if sum(table.values()) % 50 == 0:
            print(dict(table), file=sys.stderr, flush=True)
        if what not in ("refused", "answered"):
            bad.append((what, where, said))
            say(what, where, "|", said[-300:].strip(), flush=True)

    def commands_refuse(case):
        what, said, words = play(*case, home)
        note(what, " ".join(w[:200] for w in words), said)

    def parameters_refuse(place, value):
        note(parameter(*place, value), place, repr(value))

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        setup(home)
        wrong, named = files(home), [(s, n) for s, c in SECTIONS.items() for n, _ in leaves(c)]
        coin, every = random.Random(start), [*places(), *named]
        coin.shuffle(every)
        for place in every[: max(count // 2, count - 300)]:
            if len(place) == 2:
                parameters_refuse(place, coin.choice([*NUMBERS, *WORDS, *ODD]))
            else:
                name, key, kind = place
                commands_refuse((name, {key: coin.choice(values(kind, wrong))}))
        rest = count - sum(table.values())
        for check, cases_of, n in (
            (commands_refuse, [cases(wrong)], rest - rest // 3),
            (parameters_refuse, [st.sampled_from(named), JSON], rest // 3),
        ):
            draws = settings(
                max_examples=n, database=None, deadline=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            draws(seed(start)(given(*cases_of)(check)))()
    return table, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table, bad = run(options.cases, options.seed)
    print(f"cases {sum(table.values())}: " + ", ".join(f"{table[o]} {o}" for o in OUTCOMES))
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
