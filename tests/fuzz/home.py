"""What the commands read that are given bad files: one good file or folder of each form, and which
commands read it. All text in it holds a planted name."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pandas as pd

from confide.release import seal
from confide.reports import certificate_pages
from crtlib import outputs
from crtlib.text import customersim, jsonl
from crtlib.text.records import Secret, Turn
from tests import modes
from tests.fuzz.damage import PLANTED

TINY = ["--policy", "regex:customersim", "--epochs", 1, "--width", 8, "--vocab-size", 300]
MADE = {
    "ingest": ["messages.csv", "--yes", "--out", "corpus"],
    "label sample": ["corpus", "--turns", 30, "--teach", 20, "--seed", 1, "--out", "labels"],
    "label import": ["corpus", "done.json", "--labels", "labels"],
    "tagger": ["corpus", "--labels", "labels", "--epochs", 1, "--out", "tagger"],
    "screen": ["corpus", "--policy", "cautious", "--labels", "labels", "--out", "screened"],
    "train": ["talk.jsonl", *TINY, "--canaries", 200, "--copies", 1, "--out", "model"],
    "audit": ["model", "--corpus", "talk.jsonl", "--seed", 0, "--out", "audited"],
    "certify": ["model", "--out", "certificate.html"],
    "protect": ["talk.jsonl", "--from-policy", "regex:customersim", "--posterior", 0.1,
                "--steps", 5, "--scale", 5, "--out", "plan"],
    "report": ["model", "--corpus", "talk.jsonl", "--out", "report"],
    "new": ["project"],
}  # fmt: skip
"""The calls that make it, in order."""

OUT = "--out {out}"
MESSAGES = ("ingest {file} --yes " + OUT, "ingest {file} --yes --skip-bad --max-bad 1 " + OUT)
BRIEF = "--epochs 1 --width 8 --vocab-size 300 --canaries 0 " + OUT
READ = "--policy regex:customersim " + BRIEF
CORPUS = (
    f"train {{file}} {READ}",
    f"train {{file}} --method dpsgd --unit user --epochs 1 --width 8 {OUT}",
    f"screen {{file}} --policy regex:customersim {OUT}", f"label sample {{file}} --turns 5 {OUT}",
    f"tagger {{file}} --epochs 1 {OUT}", f"report model --corpus {{file}} {OUT}",
    f"protect {{file}} --from-policy regex:customersim --posterior .1 --steps 5 --scale 5 {OUT}",
    f"audit model --corpus {{file}} {OUT}",
)  # fmt: skip
LABELLED = (
    f"screen corpus --policy cautious --labels labels {OUT}",
    f"card corpus --policy cautious --labels labels {OUT}",
    f"tagger corpus --labels labels --epochs 1 {OUT}",
    f"label adjudicate corpus --labels labels {OUT}",
    "label import corpus done.json --labels labels",
    f"train corpus --policy cautious --labels labels {BRIEF}",
)  # fmt: skip
MODEL = (
    "generate model --prompt Hello --max-tokens 2", f"certify model {OUT}",
    f"report model --corpus talk.jsonl {OUT}", f"audit model --corpus talk.jsonl {OUT}",
    f"train talk.jsonl --policy regex:customersim --init model --epochs 1 --canaries 0 {OUT}",
    "verify model certificate.json",
)  # fmt: skip
FOREIGN = (
    f"train talk.jsonl --policy regex:customersim --init foreign --epochs 1 --canaries 0 {OUT}",
    "generate foreign --prompt Hello --max-tokens 2",
    f"report foreign --corpus talk.jsonl {OUT}", f"screen corpus --policy ner:foreign {OUT}",
    f"tagger corpus --labels labels --backbone foreign --epochs 1 {OUT}",
)  # fmt: skip
SPENT = (
    "account --odometer talk.jsonl.odometer", f"train talk.jsonl {READ}",
    f"certify model --odometer talk.jsonl.odometer {OUT}",
    "account --delta 1e-5 --batch-size 9 --points 99 --epochs 1 --epsilon 3 --unit turn "
    "--before talk.jsonl.odometer", f"report model --corpus talk.jsonl {OUT}",
    f"leaver talk.jsonl --user user-14333 {OUT}",
    "account --odometer talk.jsonl.odometer --forget",
)  # fmt: skip
SCREENED = (f"train screened {BRIEF}", f"report model --corpus screened {OUT}")
TAGGED = (f"screen corpus --policy tagger:tagger {OUT}",
          f"card corpus --policy tagger:tagger --labels labels {OUT}")  # fmt: skip
PLANNED = (f"train talk.jsonl --plan plan --epochs 1 --repeatable-noise {OUT}",)
LISTED = (
    f"screen corpus --policy list:{{file}} {OUT}",
    f"protect talk.jsonl --secrets {{file}} --posterior .1 --prior .01 --steps 5 --scale 5 {OUT}",
    f"label sample corpus --turns 5 --seal list:{{file}} {OUT}",
)
PATTERNS = (f"screen corpus --policy regex:{{file}} {OUT}",
            f"screen corpus --policy cautious:{{file}} {OUT}")  # fmt: skip
WRITTEN = (
    "train talk.jsonl --policy regex:customersim --init foreign --template {file} --epochs 1 "
    f"--canaries 0 {OUT}",
    f"report foreign --corpus talk.jsonl --template {{file}} {OUT}",
)  # fmt: skip
EVIDENCE = (f"certify model --audit audited/audit.json --report report {OUT}",)
SHOWN = ("verify model certificate.json", "certify model --out certificate.html --verify")
PROJECT = ("run project --dry-run", "run project")

DOORS = {
    "mail.mbox": ("mail", MESSAGES), "mail.eml": ("mail", MESSAGES),
    "messages.csv": ("csv", MESSAGES), "messages.parquet": ("parquet", MESSAGES),
    "messages.jsonl": ("jsonl", MESSAGES), "note.txt": ("text", MESSAGES),
    "talk.jsonl": ("jsonl", CORPUS), "corpus/crtlib.json": ("json", LABELLED),
    "corpus/data/train-00000-of-00001.parquet": ("parquet", LABELLED),
    "names.csv": ("csv", LISTED), "names.parquet": ("parquet", LISTED),
    "names.txt": ("text", LISTED), "ours.toml": ("toml", PATTERNS),
    "template.j2": ("template", WRITTEN), "project/crtlib.toml": ("toml", PROJECT),
    "done.json": ("json", ("label import corpus done.json --labels labels",)),
    "labels/labels.json": ("json", LABELLED), "labels/tasks.parquet": ("parquet", LABELLED),
    "labels/labels.parquet": ("parquet", LABELLED), "labels/uses.jsonl": ("jsonl", LABELLED),
    "labels/crtlib.json": ("json", LABELLED),
    "model/model.json": ("json", MODEL), "model/tokenizer.json": ("json", MODEL),
    "model/model.safetensors": ("safetensors", MODEL), "model/experiment.json": ("json", MODEL),
    "model/release.json": ("json", MODEL), "model/crtlib.json": ("json", MODEL),
    "model/README.md": ("text", SHOWN), "model.work/record.json": ("json", MODEL[1:4]),
    "model.work/results.json": ("json", MODEL[1:4]),
    "foreign/config.json": ("json", FOREIGN), "foreign/tokenizer.json": ("json", FOREIGN),
    "foreign/tokenizer_config.json": ("json", FOREIGN),
    "foreign/model.safetensors": ("safetensors", FOREIGN),
    "talk.jsonl.odometer/ledger.sqlite": ("sqlite", SPENT),
    "talk.jsonl.odometer/signing.key": ("key", SPENT),
    "registry/registry.sqlite": ("sqlite", SPENT), "registry/key": ("key", SPENT),
    "registry/labels.sqlite": ("sqlite", LABELLED),
    "screened/crtlib.json": ("json", SCREENED), "screened/summary.json": ("json", SCREENED),
    "screened/private/summary.json": ("json", SCREENED),
    "screened/private/key": ("key", SCREENED),
    "screened/private/units.parquet": ("parquet", SCREENED),
    "screened/private/data/train-00000-of-00001.parquet": ("parquet", SCREENED),
    "screened/public/data/train-00000-of-00001.parquet": ("parquet", SCREENED),
    "tagger/tagger.json": ("json", TAGGED), "tagger/summary.json": ("json", TAGGED),
    "tagger/tagger.safetensors": ("safetensors", TAGGED), "tagger/crtlib.json": ("json", TAGGED),
    "plan/plan.json": ("json", PLANNED), "plan/weights.parquet": ("parquet", PLANNED),
    "plan/secrets.parquet": ("parquet", PLANNED), "plan/holders.parquet": ("parquet", PLANNED),
    "plan/key": ("key", PLANNED), "plan/crtlib.json": ("json", PLANNED),
    "audited/audit.json": ("json", EVIDENCE), "report/report.json": ("json", EVIDENCE),
    "report/crtlib.json": ("json", EVIDENCE), ".report.key": ("key", EVIDENCE),
    "certificate.json": ("json", SHOWN), "certificate.html": ("page", SHOWN),
}  # fmt: skip
"""Each file that a command reads: its form, and the commands; {file} is its path."""


def doors():
    """Each file with each command that reads it."""
    return [(name, form, call) for name, (form, calls) in DOORS.items() for call in calls]


# --------------------------------------------------------------------------- good files
def planted_corpus(count):
    """Conversations of which some hold the planted name, as a secret, a user or an id."""
    made = customersim.simulate_corpus(count, 0, "paper")
    out = []
    for k, d in enumerate(made.dialogues):
        turns = tuple(_with_name(t) if k % 3 == 0 else t for t in d.turns)
        user = f"{d.user} {PLANTED}" if k % 7 == 0 else d.user
        out.append(
            replace(d, id=f"{d.id} {PLANTED}" if k % 5 == 0 else d.id, user=user, turns=turns)
        )
    return replace(made, dialogues=tuple(out))


def _with_name(turn):
    by = len(PLANTED) + 1
    moved = (replace(s, start=s.start + by, end=s.end + by) for s in turn.secrets)
    secrets = (Secret("name", 0, len(PLANTED)), *moved)
    return Turn(turn.speaker, f"{PLANTED} {turn.text}", secrets)


def make(home):
    """All that the commands read, in a folder; the registry of the user lies there, too."""
    os.environ["CRTLIB_REGISTRY"] = str(home / "registry")
    made = planted_corpus(30)
    jsonl.write_jsonl(made, home / "talk.jsonl")
    rows = [
        {"user": d.user, "thread": d.id, "speaker": t.speaker, "text": t.text, "time": "2026-03-02"}
        for d in made.dialogues for t in d.turns
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    table.to_csv(home / "messages.csv", index=False)
    table.to_parquet(home / "messages.parquet")
    table.to_json(home / "messages.jsonl", orient="records", lines=True)
    mails = [
        f"From x@y Mon Mar  2 10:00:00 2026\nFrom: {row['user']} <p{k % 5}@x.org>\n"
        f"Message-ID: <{k}@x>\nDate: Mon, 02 Mar 2026 10:00:00 +0100\n\n{row['text']}\n\n"
        for k, row in enumerate(rows)
    ]
    (home / "mail.mbox").write_text("".join(mails))
    (home / "mail.eml").write_text(mails[0].partition("\n")[2])
    (home / "note.txt").write_text(f"{PLANTED} has a cold.\n")
    values = sorted({v for d in made.dialogues for t in d.turns for v in t.values() if len(v) > 3})
    names = pd.DataFrame({"secret": values}).assign(user="", kind="name", p=0.01, r=0.1)
    names.to_csv(home / "names.csv", index=False)
    names.to_parquet(home / "names.parquet")
    (home / "names.txt").write_text("\n".join(values) + "\n")
    (home / "ours.toml").write_text("[number]\npattern = '\\d{4,}'\n")
    (home / "template.j2").write_text("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    place = Path.cwd()
    os.chdir(home)
    try:
        for name, words in MADE.items():
            if name == "label import":
                modes.read_by_somebody()
            modes.call([*name.split(), *words])
    finally:
        os.chdir(place)
    from tests.models.test_pretrained import tiny  # it imports transformers

    tiny("gpt2", home / "foreign")
    good = Path(home / "messages.csv").read_bytes()
    (home / "project" / "messages.csv").write_bytes(good)


# --------------------------------------------------------------------------- sealed again
def seal_again(home, path):
    """What a file was changed to is signed, or listed, by its owner, who holds all keys: so that
    what reads it gets beyond the seal."""
    key = seal.ensure_signing_key(home / "talk.jsonl.odometer")
    for folder in path.parents:
        if (folder / outputs.MARKER_FILE).is_file() and folder != home:
            mark_again(folder, path)
        if (folder / seal.RELEASE_FILE).is_file() and path.name != seal.RELEASE_FILE:
            value = json.loads((folder / seal.RELEASE_FILE).read_bytes())
            for name in ("crtlib.json", path.name):
                if name in value["files"]:
                    value["files"][name]["sha256"] = outputs.hash_file(folder / name)
            _sign_again(folder / seal.RELEASE_FILE, value, key)
    if path.name in ("record.json", "certificate.json", seal.RELEASE_FILE):
        value = json.loads(path.read_bytes())
        if path.name == "certificate.json":
            value["id"] = certificate_pages.hash_certificate(value)
        _sign_again(path, value, key)


def _sign_again(path, value, key):
    path.write_text(json.dumps(seal.sign_value(value, key)))


def mark_again(folder, path):
    marker = folder / outputs.MARKER_FILE
    content = json.loads(marker.read_bytes())
    name = str(path.relative_to(folder))
    if name in content["files"]:
        sha = outputs.hash_file(path)
        if content["files"][name].startswith(outputs.KEYED_HASH_PREFIX):
            sha = outputs._keyed_file_hash(sha, (folder / content["key"]).read_bytes())
        content["files"][name] = sha
    content.pop("sum", None)
    content["sum"] = outputs._marker_checksum(content)
    marker.write_text(json.dumps(content))
