"""Who edits what is signed, or harms what is read, is told in one line."""

import contextlib
import functools
import json
import random
import shutil
import sqlite3

import pytest

from confide.release import seal
from crtlib import outputs
from tests import modes, trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT, copy_folder, edit_json, make_certificate


def noised_source(content):
    return next(s for s in content["sources"] if s["kind"] == "noised")


EDITS = [
    *[("m/release.json", change) for change in (
        lambda c: noised_source(c)["events"][0].update(noise_multiplier=10.0),
        lambda c: noised_source(c).update(events=[]),
        lambda c: noised_source(c).update(relation="add_or_remove"),
        lambda c: noised_source(c)["screening"].update(trace=0.001),
        lambda c: noised_source(c).update(unit="user"),
        lambda c: noised_source(c).update(unit=["x"]),
        lambda c: c["sources"].clear(),
        lambda c: c.update(sources=7),
        lambda c: c["files"].pop("README.md"),
        lambda c: c["files"].clear(),
        lambda c: c.update(files=None),
        lambda c: c.update(run="other"),
        lambda c: c.update(signature="00" * 64),
        lambda c: c.update(signature=None),
        lambda c: c.pop("signature"),
        lambda c: c.update(public_key="00" * 32),
        lambda c: c.update(public_key=7),
        lambda c: c.clear(),
    )],
    *[("m.work/record.json", change) for change in (
        lambda c: c["rates"]["trace"].update(upper=0.001),
        lambda c: c["rates"]["public"].update(how="policy", upper=0.0),
        lambda c: c["rates"].clear(),
        lambda c: c.pop("labels"),
        lambda c: c.pop("canaries"),
        lambda c: c.update(canaries=None),
        lambda c: c.update(randomness="operating_system", x=1),
        lambda c: c.update(protects_all=1),
        lambda c: c.update(delta=1e-12),
        lambda c: c.update(delta="1e-5"),
        lambda c: c.update(unit="user"),
        lambda c: c.update(software={}),
        lambda c: c.update(phases=[]),
        lambda c: c["odometer"].update(folder="/nowhere"),
        lambda c: c["odometer"].update(run="x"),
        lambda c: c["model"].update(sha256="0" * 64),
        lambda c: c["searched"].update(trials=-1),
        lambda c: c.update(key="zz"),
        lambda c: c.update(schema="crtlib/run/9"),
        lambda c: c.pop("public_key"),
        lambda c: c.clear(),
    )],
    *[("m.json", change) for change in (
        lambda c: c["guarantee"]["missed"].update(epsilon=0.1),
        lambda c: c.update(verdict="none"),
        lambda c: c.pop("id"),
        lambda c: c.update(right_guess=[]),
        lambda c: c.update(signature="00" * 64),
        lambda c: c.update(rates=None),
        lambda c: c.clear(),
    )],
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(EDITS)))
def test_who_edits_what_is_signed_is_told_in_one_line(certified_model, tmp_path, run, number):
    """Noise times ten, no events, another relation: "holds, verified"; or a traceback."""
    name, change = EDITS[number]
    home = copy_folder(certified_model, tmp_path)
    edit_json(home / name, change)
    code, said, error = run("certify", home / "m", "--out", home / "m.html", "--verify")
    assert code in (2, 4) and "verified" not in said and "Traceback" not in error
    assert len((said + error).strip().splitlines()) == 1
    if name != "m.json":
        code, said, error = run("certify", home / "m", "--out", home / "new.html")
        assert code in (2, 4) and "holds" not in said and "Traceback" not in error
        assert len((said + error).strip().splitlines()) == 1


def run_statement(statement):
    """Edit a ledger as who can open it would."""

    def change(path):
        with contextlib.closing(sqlite3.connect(path)) as base, base:
            base.execute(statement)

    return change


FOLDERS = {
    "screened": ("crtlib.json", "private/summary.json", "private/units.parquet", "public/data/*"),
    "plan": ("crtlib.json", "plan.json", "weights.parquet", "holders.parquet", "key"),
    "labels": ("crtlib.json", "labels.json", "tasks.parquet", "labels.parquet"),
}
"""What training and screening read of the folders that are made before: each file is harmed."""


READING_COMMANDS = {
    "screened": ["train", "screened", "--epochs", 1, "--width", 4, "--out", "out"],
    "plan": ["train", "talk.jsonl", "--plan", "plan", "--epochs", 1, "--width", 4, "--out", "out"],
    "labels": ["screen", "corpus", "--policy", "cautious", "--labels", "labels", "--out", "out"],
}


@pytest.fixture(scope="module")
def folders_of_each_kind(tmp_path_factory):
    """A screened folder, a plan and labels, and the corpora of which they were made."""
    home = tmp_path_factory.mktemp("folders")
    modes.measure(home, 0o022, only=(
        "simulate", "ingest", "label sample", "label import", "screen", "protect",
    ))  # fmt: skip
    return home


def walk_places(value, path=()):
    """Each place in a JSON value, by the names that lead there."""
    yield path
    if isinstance(value, dict | list):
        each = value.items() if isinstance(value, dict) else enumerate(value[:1])
        for name, one in each:
            yield from walk_places(one, (*path, name))


def harm_file(path, rng):
    """Ways to harm a file: of JSON six places have another value, of others bytes are lost."""
    raw = path.read_bytes()
    if path.suffix != ".json":
        return [b"", raw[:-1], raw[: len(raw) // 2]]
    content, out = json.loads(raw), [b"{}", b"[]", raw[:-3]]
    for place in rng.sample([p for p in walk_places(content) if p], 6):
        changed = json.loads(raw)
        *above, last = place
        inside = functools.reduce(lambda value, name: value[name], above, changed)
        kinds = [v for v in (None, 7, -1.0, "x", [], {}, 1e300) if v != inside[last]]
        inside[last] = rng.choice(kinds)
        out.append(json.dumps(changed).encode())
    return out


@pytest.mark.parametrize("kind", FOLDERS)
def test_who_edits_what_is_read_before_training_is_told_in_one_line(
    folders_of_each_kind, tmp_path, run, monkeypatch, kind
):
    """An entry of the marker that was edited, or taken out, let an edited file through."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(kind)
    shutil.copytree(folders_of_each_kind, tmp_path, dirs_exist_ok=True)
    cases = 0
    for name in FOLDERS[kind]:
        (path,) = (folders_of_each_kind / kind).glob(name)
        for content in harm_file(path, rng):
            for how in ("as it is",) if name == "crtlib.json" else ("as it is", "out", "anew"):
                mine = tmp_path / kind
                shutil.rmtree(mine)
                shutil.copytree(folders_of_each_kind / kind, mine)
                harmed = mine / path.relative_to(folders_of_each_kind / kind)
                harmed.write_bytes(content)
                marker = json.loads((folders_of_each_kind / kind / "crtlib.json").read_bytes())
                named = str(harmed.relative_to(mine))
                if how == "out":
                    marker["files"].pop(named)
                if how == "anew":
                    marker["files"][named] = outputs.hash_file(harmed)
                if name != "crtlib.json":
                    (mine / "crtlib.json").write_text(json.dumps(marker))
                code, said, error = run(*READING_COMMANDS[kind])
                assert code in (2, 3), (named, content[:300], how, said, error)
                assert len((said + error).strip().splitlines()) == 1 and "Traceback" not in error
                assert not (tmp_path / "out").exists()
                cases += 1
    assert cases >= 40


HARMS_OF_A_LEDGER = [
    lambda p: p.write_bytes(p.read_bytes()[:1000]),
    lambda p: p.write_bytes(b""),
    lambda p: p.write_bytes(b"SQLite format 3\0" + bytes(4000)),
    lambda p: p.write_text("{}"),
    lambda p: p.unlink(),
    lambda p: (p.unlink(), p.mkdir()),
    run_statement("DELETE FROM lines"),
    run_statement("DELETE FROM lines WHERE n = 1"),
    run_statement("DROP TABLE lines"),
    run_statement("DROP TABLE head"),
    run_statement("UPDATE lines SET content = '{}'"),
    run_statement("UPDATE lines SET content = 'x'"),
    run_statement("UPDATE lines SET content = replace(content, 'turn', 'user')"),
    run_statement("UPDATE head SET corpus = '0'"),
]


@pytest.mark.parametrize("number", range(len(HARMS_OF_A_LEDGER)))
def test_who_harms_a_ledger_is_told_in_one_line(certified_model, tmp_path, run, number):
    home = copy_folder(certified_model, tmp_path)
    ledger = home / "c.jsonl.odometer"
    HARMS_OF_A_LEDGER[number](ledger / "ledger.sqlite")
    code, said, error = run("certify", home / "m", "--odometer", ledger, "--out", home / "n.html")
    assert code in (2, 3, 4) and ": holds;" not in said and "Traceback" not in error
    assert len((said + error).strip().splitlines()) == 1


@pytest.mark.parametrize("name, harm", [
    ("model.safetensors", lambda p: p.write_bytes(p.read_bytes()[:-1] + b"x")),
    ("tokenizer.json", lambda p: p.write_text(p.read_text() + " ")),
    ("README.md", lambda p: p.unlink()),
    ("crtlib.json", lambda p: p.write_text(p.read_text().replace('"train"', '"crain"'))),
    ("names.txt", lambda p: p.write_text("Ada Lovelace")),
    ("more/names.txt", lambda p: (p.parent.mkdir(), p.write_text("Ada Lovelace"))),
    ("link", lambda p: p.symlink_to("model.safetensors")),
    ("more", lambda p: p.symlink_to("/")),
    ("Ada Lovelace", lambda p: p.mkdir()),
])  # fmt: skip
def test_a_file_that_is_not_what_was_released_is_named(certified_model, tmp_path, name, harm):
    """Weights changed, or a file added: the certificate held."""
    home = copy_folder(certified_model, tmp_path)
    harm(home / "m" / name)
    made = make_certificate(home / "m", home / "new.html")
    assert made["verdict"] == "void"
    assert f"{name} is not what was released." in made["void_because"]


def test_a_record_that_another_key_signed_is_void(certified_model, tmp_path):
    """Who has no key can sign anew with his own, and is seen: it is not that of the odometer."""
    home = copy_folder(certified_model, tmp_path)
    other = seal.ensure_signing_key(tmp_path / "m.work")
    for name in ("m.work/record.json", "m/release.json"):
        content = seal.sign_value(json.loads((home / name).read_text()), other)
        (home / name).write_text(json.dumps(content))
    made = make_certificate(home / "m", home / "new.html")
    assert made["verdict"] == "void" and "not signed by the key" in " ".join(made["void_because"])


def test_who_has_the_key_cannot_say_other_than_the_odometer(certified_model, tmp_path):
    home = copy_folder(certified_model, tmp_path)
    key = seal.ensure_signing_key(certified_model / "c.jsonl.odometer")
    content = json.loads((home / "m/release.json").read_text())
    noised_source(content)["events"][0]["noise_multiplier"] = 10.0
    (home / "m/release.json").write_text(json.dumps(seal.sign_value(content, key)))
    made = make_certificate(home / "m", home / "new.html")
    assert "The odometer disagrees about the events of this run." in made["void_because"]


def test_what_a_stranger_signed_is_not_signed_again(tmp_path):
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    (tmp_path / "m" / "raw.txt").write_text("my name is Ada Lovelace")
    release = tmp_path / "m" / "release.json"
    content = json.loads(release.read_text())
    content["files"]["raw.txt"] = {
        "sha256": outputs.hash_file(tmp_path / "m" / "raw.txt"), "sources": [0]
    }  # fmt: skip
    release.write_text(json.dumps(seal.sign_value(content, seal.ensure_signing_key(tmp_path))))
    page = tmp_path / "m" / "certificate.html"
    assert [make_certificate(tmp_path / "m", page)["verdict"] for _ in range(2)] == ["void", "void"]


def test_an_audit_does_not_believe_an_edited_record(tmp_path, run):
    """Noise of 20 was written into it: "proved 0.0748", where 3 is; audit.json goes into the
    certificate."""
    text = write_simulated_text(tmp_path / "c.jsonl", dialogues=60)
    canaries = {"canaries": 200, "audited": True, "copies": 1}
    trainings.train(text, out=tmp_path / "m", **CRT | canaries)
    edit_json(
        tmp_path / "m.work" / "record.json", lambda c: c["phases"][-1].update(noise_multiplier=20.0)
    )
    code, said, _ = run("audit", tmp_path / "m", "--corpus", text, "--out", tmp_path / "a")
    assert code != 0 and "proved 0.07" not in said
