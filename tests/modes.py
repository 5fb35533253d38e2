"""The mode of every file that each command writes: ``python -m tests.modes`` puts the table into
SECURITY.md, measured under both umasks."""

import contextlib
import io
import json
import os
import re
import stat
import sys
import tempfile
from pathlib import Path

from confide import __main__ as cli
from confide.labels import label_tasks
from crtbook import __main__ as companion
from crtbook import sweeps
from crtbook.game import GameStudy
from crtlib.text import corpora

PAGE = Path(__file__).resolve().parents[1] / "SECURITY.md"
BEGIN, END = "<!-- modes: written by make modes -->\n", "<!-- modes end -->\n"
TINY = ["--epochs", 1, "--width", 8, "--vocab-size", 300]
STEPS = {
    "simulate": ["--dialogues", 40, "--out", "talk.jsonl"],
    "simulate --out shared": ["--dialogues", 3],
    "convert": ["customersim", "--limit", 3, "--out", "known.jsonl"],
    "ingest": ["messages.csv", "--yes", "--out", "corpus"],
    "label sample": ["corpus", "--turns", 30, "--teach", 20, "--seed", 1, "--out", "labels"],
    "label import": ["corpus", "done.json", "--labels", "labels"],
    "label adjudicate": ["corpus", "--labels", "labels", "--out", "again"],
    "tagger": ["corpus", "--labels", "labels", "--epochs", 1, "--out", "tagger"],
    "card": ["corpus", "--policy", "cautious", "--labels", "labels", "--out", "card"],
    "advise": ["corpus", "--labels", "labels", "--policy", "cautious", "--require", "guess <= 90",
               "--out", "advice.html"],
    "screen": ["corpus", "--policy", "cautious", "--labels", "labels", "--reveal", 1,
               "--out", "screened"],
    "train": ["talk.jsonl", *TINY, "--canaries", 200, "--copies", 1, "--out", "model"],
    "train --method sgd": ["talk.jsonl", *TINY, "--out", "open"],
    "generate": ["model", "--prompt", "Hello", "--max-tokens", 2],
    "certify": ["model", "--out", "certificate.html", "--evidence", "aisvs"],
    "audit": ["model", "--corpus", "talk.jsonl", "--seed", 0, "--out", "audit"],
    "account": ["--odometer", "talk.jsonl.odometer"],
    "leaver": ["talk.jsonl", "--user", "user-14333", "--out", "leaver.html"],
    "protect": ["talk.jsonl", "--from-policy", "regex:customersim", "--posterior", 0.1,
                "--steps", 5, "--scale", 5, "--out", "plan"],
    "train --plan": ["plan", "talk.jsonl", "--epochs", 1, "--repeatable-noise", "--out", "planned"],
    "report": ["model", "--corpus", "talk.jsonl", "--out", "report"],
    "report --reveal": ["model", "--corpus", "talk.jsonl", "--reveal", "--out", "clear"],
    "sweep": ["games", "--executor", "threads:", "--workers", 1, "--out", "table.parquet"],
    "plan": [],
    "claims": ["--paper", "hush"],
    "lab": ["--key", "class.key", "--students", "names.txt", "--out", "class"],
    "grade": ["submissions", "--lab", "attack", "--key", "class.key", "--out", "marks.csv"],
    "new": ["project"],
}  # fmt: skip
"""A call of each command; ``crtlib run`` writes what the commands write that it calls."""
QUICK = ("simulate", "simulate --out shared", "convert", "ingest", "label sample", "label import",
         "label adjudicate", "card", "screen", "report", "report --reveal", "new")  # fmt: skip
"""Those that train nothing; the reports need a folder ``model``."""


def given(home):
    """What the calls read that no call writes."""
    rows = ["customer,ticket,sender,body"]
    for d in corpora.load_corpus("customersim", limit=40).dialogues:
        rows += [f'{d.user},{d.id},{t.speaker},"{t.text.replace(chr(34), "")}"' for t in d.turns]
    (home / "messages.csv").write_text("\n".join(rows) + "\n")
    (home / "names.txt").write_text("ann\n")
    (home / "submissions").mkdir()
    (home / "submissions" / "ann.json").write_text("{}")


def read_by_somebody():
    """The file that the page exports: nobody found a secret but in what holds a digit."""
    tasks = []
    for t in label_tasks.read_tasks("labels"):
        found = [{"kind": "id", "start": m.start(), "end": m.end()}
                 for m in re.finditer(r"\w*\d\w*", t.text)]  # fmt: skip
        tasks.append({"task": t.task, "done": True, "secrets": found})
    digest = label_tasks.read_label_facts("labels")["labels"]
    export = {"schema": "crtlib/labels/1", "labels": digest, "annotator": "ann", "tasks": tasks}
    Path("done.json").write_text(json.dumps(export))


def call(words):
    program = companion if words[0] in companion.app.names else cli
    sys.argv = ["crtlib", *map(str, words)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            program.main()
        except SystemExit as end:
            assert not end.code, (words, said.getvalue())


def measure(home, mask, *, only=tuple(STEPS)):
    """The modes after each call: {command: {path: mode}}, of paths that are new with it."""
    given(home)
    before, place, studies = os.umask(mask), Path.cwd(), sweeps.make_studies
    tiny = GameStudy(seed=0, candidates=4, others=8, steps=1, batch_size=6.0)
    sweeps.make_studies = lambda *_: [tiny]  # its files are those of any other
    table, known = {}, {p for p in home.rglob("*")}
    os.chdir(home)
    try:
        for name in only:
            if name == "label import":
                read_by_somebody()
                known.add(home / "done.json")
            call([*name.split(), *STEPS[name]])
            new = sorted(p for p in home.rglob("*") if p not in known)
            known.update(new)
            table[name] = {shown(p, home): stat.S_IMODE(p.stat().st_mode) for p in new}
    finally:
        os.umask(before)
        os.chdir(place)
        sweeps.make_studies = studies
    return table


def shown(path, home):
    """A path as the table has it: names that are hashes are KEY, folders end in a slash."""
    name = re.sub(r"[0-9a-f]{16,}", "KEY", str(path.relative_to(home)))
    return name + "/" * path.is_dir()


def lines(wide, narrow):
    """The rows of the table: a command, both modes, and all files that have them."""
    yield "| command | umask 022 | umask 077 | files |"
    yield "|---|---|---|---|"
    for name, files in wide.items():
        groups = {}
        for path, mode in files.items():
            groups.setdefault((f"{mode:04o}", f"{narrow[name][path]:04o}"), []).append(path)
        for (one, two), paths in sorted(groups.items(), reverse=True):
            yield f"| `{name}` | {one} | {two} | {', '.join(f'`{p}`' for p in paths)} |"
        if not files:
            yield f"| `{name}` | | | writes nothing |"


def recorded():
    """The table of SECURITY.md: {command: {path: (mode, mode)}}."""
    table = {}
    rows = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()
    for row in rows[2:]:
        name, one, two, paths = (cell.strip() for cell in row.strip().strip("|").split("|"))
        some = table.setdefault(name.strip("`"), {})
        if not one:
            continue
        some |= {p: (int(one, 8), int(two, 8)) for p in re.findall(r"`([^`]+)`", paths)}
    return table


def list_readable_files(folder, word):
    """Files that others may read, and in which the word stands."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.stat().st_mode & 0o004)
    return [p.name for p in files if word in p.read_text(errors="replace")]


def main():
    found = []
    for mask in (0o022, 0o077):
        with tempfile.TemporaryDirectory() as home:
            found.append(measure(Path(home), mask))
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = "".join(line + "\n" for line in lines(*found))
    PAGE.write_text(head + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
