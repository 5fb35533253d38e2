"""The simulator has the original's shape, and its spans are exact."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crtbook import likeness
from crtbook.likeness import ORIGINAL, describe_corpus
from crtlib.screening import regex_policies
from crtlib.text import corpora, customersim
from crtlib.text.customersim import CUSTOMERSIM_KINDS, simulate_corpus
from tests.text import original

DATA = Path(os.environ.get("CRTLIB_DATA", "")) / "customersim_shi2021"
needs_original = pytest.mark.skipif(
    not os.environ.get("CRTLIB_DATA") or not DATA.is_dir(),
    reason="CRTLIB_DATA is unset or has no folder customersim_shi2021 (the original corpus)",
)
SHAPES = {
    "name": r"[A-Z][\w'’-]+ [\w'’-]+",
    "phone": r"\d{3}([-.]?)\d{3}\1\d{4}",
    "order": r"\d{3}-\d{5}-\d{4}",
    "address": r".+ [A-Z]{2} \d{5}",
    "tracking": r"[A-Z0-9]{10}",
}


def describe(train, test):
    return describe_corpus(train) | likeness.shared_values(train, test)


def test_paper_variety_matches_the_original():
    found = describe(simulate_corpus(10_000, 0), simulate_corpus(1_000, 1))
    far = {k: (found[k], *ORIGINAL[k]) for k in ORIGINAL if not _near(found[k], *ORIGINAL[k])}
    assert not far


def _near(value, target, tolerance):
    return abs(value - target) <= tolerance


@needs_original
def test_the_table_is_what_the_original_says():
    train, test = (
        original.annotate(original.read(DATA, split), regex_policies.corpus_regex_policy())
        for split in ("train", "test")
    )
    found = describe(train, test)
    assert found["dialogues"] == 10_000
    for key, (value, _) in ORIGINAL.items():
        assert found[key] == pytest.approx(value, rel=0.0005, abs=0.0015), key


@needs_original
def test_our_wording_is_our_own():
    """No sentence of ours is one of the original's, secrets and bare answers aside."""
    sentences = []
    for corpus in (
        original.annotate(original.read(DATA, "train"), regex_policies.corpus_regex_policy()),
        simulate_corpus(2_000, 0),
    ):
        found = set()
        for turn in corpus.turns():
            text = turn.text
            for s in reversed(turn.secrets):
                text = f"{text[: s.start]}<{s.kind}>{text[s.end :]}"
            found |= {part.strip(" .!?") for part in re.split(r"(?<=[.!?]) ", text)}
        sentences.append({s for s in found if len(s.split()) > 1 and s.count("<") < 2})
    assert len(sentences[1]) > 50  # there is something to compare
    both = sentences[0] & sentences[1]
    assert not both


def test_rich_variety_is_a_language_and_paper_is_not():
    assert describe_corpus(simulate_corpus(1_000, 0, "rich"))["secret_free_turns"] > 4_000
    assert describe_corpus(simulate_corpus(500, 7, "paper"))["secret_free_turns"] == 61


@pytest.mark.parametrize("variety", customersim.VARIETIES)
def test_spans_are_exact(variety):
    for turn in simulate_corpus(300, 5, variety).turns():
        assert "{" not in turn.text and "|" not in turn.text and "(" not in turn.text
        assert turn.text == " ".join(turn.text.split())
        for s, value in zip(turn.secrets, turn.values(), strict=True):
            assert re.fullmatch(SHAPES[s.kind], value), (s.kind, turn.text)
            rest = turn.text[: s.start] + turn.text[s.end :]
            assert value not in rest


@pytest.mark.parametrize("variety", customersim.VARIETIES)
def test_agenda(variety):
    for d in simulate_corpus(300, 6, variety).dialogues:
        speakers = [t.speaker for t in d.turns]
        assert speakers == ["SYS", "USR"] * (len(speakers) // 2) + ["SYS"] * (len(speakers) % 2)
        kinds = [s.kind for t in d.turns for s in t.secrets]
        assert kinds[0] == "name" and kinds[1] in ("phone", "order", "address")
        assert kinds.count("tracking") >= 1 and not d.turns[-1].secrets


def test_users_are_rows_of_the_database():
    people = {p.user: p for p in customersim.make_identities()}
    assert len(people) == 20_000
    corpus = simulate_corpus(1_000, 0)
    for d in corpus.dialogues:
        assert d.turns[3].values()[0] == people[d.user].name
    assert len({d.user for d in corpus.dialogues}) < 1_000  # customers come back
    assert customersim.make_identities(1) != customersim.make_identities(0)


def test_deterministic_prefix_and_no_global_state():
    random.seed(1)
    state = random.getstate()
    long = simulate_corpus(20, 3)
    assert random.getstate() == state
    assert simulate_corpus(5, 3).dialogues == long.dialogues[:5]
    assert simulate_corpus(20, 4).dialogues != long.dialogues
    assert not {d.id for d in long.dialogues} & {d.id for d in simulate_corpus(20, -3).dialogues}
    assert list(customersim.stream_dialogues(20, 3, "paper")) == list(long.dialogues)


def test_another_process_makes_the_same_dialogues():
    """Hash randomisation must not reach the corpus (sets of names are sorted before use)."""
    code = "from crtlib.text import customersim as c; print(c.simulate_corpus(3, 0).dialogues)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 0), "n=0: must be at least 1"), ((1, 0, "poor"), "variety='poor': must be one of paper")],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate_corpus(*arguments)


def test_kinds():
    assert {s.kind for t in simulate_corpus(50, 0).turns() for s in t.secrets} == set(
        CUSTOMERSIM_KINDS
    )


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "crtlib", "simulate", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_command_writes_the_corpus(tmp_path):
    out = tmp_path / "new" / "c.jsonl"
    done = command("--dialogues", 12, "--seed", 4, "--variety", "rich", "--out", out)
    assert done.returncode == 0, done.stderr
    assert corpora.read_corpus_at(out).dialogues == simulate_corpus(12, 4, "rich").dialogues
    assert [p.name for p in out.parent.iterdir()] == ["c.jsonl"]


@pytest.mark.parametrize("arguments", [("--dialogues", 0), ("--dialogues", 3, "--variety", "poor")])
def test_command_refuses_in_one_line_and_writes_nothing(tmp_path, arguments):
    done = command(*arguments, "--out", tmp_path / "deep" / "c.jsonl")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "must be" in done.stderr
    assert not list(tmp_path.iterdir())


def test_command_refuses_an_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = command("--dialogues", 3, "--out", tmp_path / "file" / "c.jsonl")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert (tmp_path / "file").read_text() == "in the way"
