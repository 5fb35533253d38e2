"""A text is written in one way where it comes in, and everything after it sees that one."""

import json
import re
import sys
import unicodedata

import pytest
import regex

from confide.text import ingest, registry_units
from confide.text_registry import Registry
from crtlib.text import corpora
from crtlib.text.identity import normalise_text
from crtlib.text.unseen_marks import UNSEEN_MARK
from crtlib.text.writing import move_spans, unify_writing

NAMES = ["josé núñez", "søren ångström", "jürgen müller", "Nguyễn Thị Ánh", "한국어 이름"]
OTHER_WAYS = [
    *(unicodedata.normalize("NFD", name) for name in NAMES),
    "jo\u200bsé nú\u00adñez",
    "\u2067tim\u2069.fw\ufeff@x.org",
    "a\u200db c\u200cd",
    "415\u200e 555\u200f 0134",
    "\U0001f3f4\U000e0067\U000e007f ok",
    "\u212a\u200d\u0301a",
    "An\u034fna\u115f Sm\u3164ith\u17b4 \uffa0",
    "4\ufe0f7\ufe0f1\ufe0e1 a\ufe0f@\ufe0fx",
    "葛\U000e0100城\ufe00",
    "\ufff9山田\ufffaやまだ\ufffb",
    "An\x00na\x07 \x1bSmith\x7f",
    "O\x92Neill, Mü\x9fller",
    "one\r\ntwo\rthree\vfour\ffive\x1csix\x85seven\x1feight\r\n",
]


@pytest.mark.parametrize("text", OTHER_WAYS)
def test_what_is_seen_alike_is_written_alike_and_compared_as_before(text):
    once = unify_writing(text)
    assert once != text and unify_writing(once) == once == unicodedata.normalize("NFC", once)
    assert normalise_text(once) == normalise_text(text)
    assert not re.search(f"(?![\u200c\u200d]){UNSEEN_MARK}", once)
    assert once.split() == [word for word in map(unify_writing, text.split()) if word]


def test_the_table_of_unseen_marks_is_the_one_of_unicode():
    """Fault: there were two tables: "An\u034fna" was compared as Anna, and stored as it was."""
    unseen = regex.compile(r"\p{Default_Ignorable_Code_Point}|[\ufff9-\ufffb]|(?!\s)\p{Cc}")
    everything = map(chr, range(sys.maxunicode + 1))
    kept = set("\x1c\x1d\x1e\x1f")  # white space to Python, and therefore between words
    ours = re.compile(UNSEEN_MARK)
    for char in everything:
        assert bool(ours.fullmatch(char)) == bool(unseen.fullmatch(char) and char not in kept)


@pytest.mark.parametrize(
    "text",
    [
        *("می\u200cخواهم", "क्\u200dष", "\U0001f469\u200d\U0001f4bb", "ｆｗ@x.org", "x² ½ ﬁ"),
        *("\u2764\ufe0f", "\u2764\ufe0f\u200d\U0001f525", "\u2194\ufe0f \u203c\ufe0e", "a\tb\nc"),
        "\U0001f3f3\ufe0f\u200d\U0001f308",
    ],
)
def test_what_a_script_or_an_emoji_needs_stays(text):
    assert unify_writing(text) == text


def test_spans_hold_the_same_characters():
    text = unicodedata.normalize("NFD", "Ich bin José\u200b Núñez, 한글.")
    for value in ("José\u200b Núñez", "José\u200b", "Núñez", "한글"):
        value = unicodedata.normalize("NFD", value)
        start = text.index(value)
        ((a, b),) = move_spans(text, [(start, start + len(value))])
        assert unify_writing(text)[a:b] == unify_writing(value)
    assert move_spans("e\u0301x", [(0, 1), (1, 2), (2, 3)]) == [(0, 1), (1, 1), (1, 2)]


def made(tmp_path, name, text):
    path = tmp_path / f"{name}.jsonl"
    rows = [{"user": f"u{k}", "thread": f"t{k}", "text": f"{text} {k} " * 9} for k in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return ingest.ingest_sources([path], tmp_path / name)


def test_an_export_of_before_is_known_again(tmp_path, monkeypatch):
    """Written as before the change, and as now: one text to the registry, by its words alone."""
    text = unicodedata.normalize("NFD", "my name is josé\u200b núñez") + " \u200e415"
    with monkeypatch.context() as before:
        before.setattr("confide.text.message_forms.unify_writing", lambda text: text)
        old = made(tmp_path, "old", text)
    new = made(tmp_path, "new", text)
    assert (old.rewritten, new.rewritten) == (0, 3) and old.facts.sha256 != new.facts.sha256
    assert (
        "written in another way (now: normal form C, none) | 3 |"
        in (tmp_path / "new/README.md").read_text()
    )
    registry = Registry(tmp_path / "registry")
    for made_ in (old, new):
        units = list(registry_units.hash_registry_units(made_.out))
        by_words = [(kind, unit) for kind, unit in units if kind not in ("user", "dialogue")]
        registry.register(made_.facts.sha256, by_words)
    assert old.facts.sha256 in registry.find_related_texts(new.facts.sha256)


def test_labels_of_a_corpus_follow_their_text(tmp_path):
    text = unicodedata.normalize("NFD", "I am José\u200b Núñez, of Köln.")
    record = {"id": "d", "user": "u", "turns": [{"speaker": "A", "text": text}]}
    record["turns"][0]["secrets"] = [{"kind": "name", "start": 5, "end": text.index(",")}]
    (tmp_path / "x.jsonl").write_text(json.dumps(record))
    ingest.ingest_sources([tmp_path / "x.jsonl"], tmp_path / "o")
    (turn,) = corpora.read_corpus_at(tmp_path / "o").dialogues[0].turns
    assert [turn.text[s.start : s.end] for s in turn.secrets] == ["José Núñez"]


def test_a_text_of_nothing_but_unseen_marks_is_none(tmp_path):
    (tmp_path / "x.csv").write_text("user,text\na,\u200b\u200e\n", encoding="utf-8")
    with pytest.raises(ValueError, match="column text: is empty"):
        ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "o")
