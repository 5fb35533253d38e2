"""Files come back as they were written, and a bad line is named."""

import gzip
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide import __main__ as cli
from confide.text import ingest, readers
from crtlib.text import corpora
from crtlib.text.customersim import simulate_corpus
from crtlib.text.data_points import make_points
from crtlib.text.jsonl import read_jsonl, write_jsonl
from crtlib.text.records import Corpus, Dialogue, Secret, Turn
from tests.text import original

GOOD = {"id": "d0", "user": "u", "turns": [{"speaker": "USR", "text": "I am Ada.", "secrets": []}]}


PRINTABLE = st.characters(exclude_categories=["C", "Z"], include_characters=" ")


@st.composite
def turns(draw):
    text = draw(st.text(PRINTABLE, min_size=1, max_size=30))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = zip(cuts[::2], cuts[1::2], strict=False)
    return Turn(
        draw(st.sampled_from(["SYS", "USR", "Ä"])), text, tuple(Secret("k", *s) for s in spans)
    )


dialogues = st.lists(st.lists(turns(), min_size=1, max_size=3), min_size=1, max_size=4).map(
    lambda all_turns: tuple(Dialogue(f"d{i}", "u", tuple(t)) for i, t in enumerate(all_turns))
)


@settings(deadline=None)  # a busy machine is no defect
@given(dialogues, st.sampled_from(["c.jsonl", "c.jsonl.gz"]))
def test_round_trip(tmp_path_factory, made, name):
    path = tmp_path_factory.mktemp("corpus") / name
    corpus = Corpus("c", made)
    write_jsonl(corpus, path)
    assert corpora.read_corpus_at(path) == corpus
    assert len(list(path.parent.iterdir())) == 1
    first = path.read_bytes()
    write_jsonl(iter(made), path)
    assert path.read_bytes() == first


def test_format_is_the_documented_one(tmp_path):
    write_jsonl(simulate_corpus(2, 0), tmp_path / "c.jsonl")
    record = json.loads((tmp_path / "c.jsonl").read_text().splitlines()[1])
    assert list(record) == ["id", "user", "turns"]
    turn = record["turns"][3]
    assert list(turn) == ["speaker", "text", "secrets"]
    assert list(turn["secrets"][0]) == ["kind", "start", "end"]


def bad(**changes):
    return json.dumps(GOOD | changes)


def bad_turn(**changes):
    return bad(turns=[GOOD["turns"][0] | changes])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "d1",', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1, 2]", "is not a JSON object"),
        ('{"id": "d1"}', "user: Field required"),
        (bad(id=7), "id: must be a valid string"),
        (bad(id="d1", turns={}), "turn: must be a valid tuple"),
        (bad(id="d1", turns=[]), "a dialogue needs at least one turn"),
        (bad(id="d1", turns=["USR: hi"]), "turn 0: must be a dictionary"),
        (bad_turn(text=None), "turn 0 text: must be a valid string"),
        (bad_turn(text="\ud800", secrets=[]), "a dialogue: holds half a surrogate pair"),
        (bad(id="\ud800"), "a dialogue: holds half"),
        (bad(id="d1", user="\udfff"), "a dialogue: holds half"),
        (bad_turn(speaker="\ud800"), "a dialogue: holds half"),
        (
            bad_turn(secrets=[{"kind": "\ud800", "start": 0, "end": 3}]),
            "a dialogue: holds half",
        ),
        (bad_turn(secrets=[[0, 1]]), "turn 0 secrets 0: must be a dictionary"),
        (
            bad_turn(secrets=[{"kind": "k", "start": True, "end": 3}]),
            "turn 0 secrets 0 start: must be a valid integer",
        ),
        (
            bad_turn(secrets=[{"kind": "k", "start": 5, "end": 10}]),
            r"turn 0: secret at \[5, 10\): must lie inside its text of 9 characters",
        ),
        (
            bad_turn(secrets=[{"kind": "k", "start": s, "end": 6} for s in (2, 5)]),
            "must not overlap",
        ),
        (bad(), "its id was used on line 1, ids must be unique"),
    ],
)
def test_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "c.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{line}\n")
    with pytest.raises(ValueError, match=message) as error:
        list(read_jsonl(path))
    assert f"{path}, line 3: " in str(error.value)
    assert "\n" not in str(error.value) and "Ada" not in str(error.value)


def test_bad_files(tmp_path):
    empty, packed, text = tmp_path / "empty.jsonl", tmp_path / "c.jsonl.gz", tmp_path / "t.jsonl"
    empty.write_text("\n")
    whole = gzip.compress("\n".join(bad(id=str(i)) for i in range(9_999)).encode())
    packed.write_bytes(whole[: len(whole) // 2])
    text.write_bytes(b'{"id": "\xff"}')
    for path, message in (
        (tmp_path / "no.jsonl", "no such file"),
        (tmp_path, "is a folder"),
        (empty, "is empty, at least one dialogue is needed"),
        (packed, r"damaged gzip file"),
        (text, "line 1: is not UTF-8"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            list(read_jsonl(path))
        assert str(path) in str(error.value)


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "c.jsonl"
    write_jsonl(simulate_corpus(2, 0), path)
    old = path.read_bytes()

    def failing():
        yield simulate_corpus(1, 1).dialogues[0]
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_jsonl(failing(), path)
    assert path.read_bytes() == old and len(list(tmp_path.iterdir())) == 1


def test_original_format(tmp_path):
    lines = [
        {"id": "canary-0.txt", "text": "My ID is 341752."},
        {"id": "dial-0.txt", "text": "SYS: Hello: you?\nUSR: I am Ada Lovelace. \n"},
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    corpus = original.read(tmp_path, "train")
    assert [d.id for d in corpus.dialogues] == ["dial-0.txt"]
    assert corpus.skipped == (("canary", 1),)
    said = [(t.speaker, t.text, t.secrets) for t in corpus.turns()]
    assert said == [("SYS", "Hello: you?", ()), ("USR", "I am Ada Lovelace. ", ())]
    with pytest.raises(ValueError, match="split='dev': must be one of train, valid, test"):
        original.read(tmp_path, "dev")
    with pytest.raises(ValueError, match=r"test.jsonl.gz: no such file"):
        original.read(tmp_path, "test")


@given(dialogues)
def test_points_keep_the_secrets(made):
    corpus = Corpus("c", made)
    values = [v for t in corpus.turns() for v in t.values()]
    for unit, count in (("turn", sum(1 for _ in corpus.turns())), ("dialogue", len(corpus))):
        cut = make_points(corpus, unit=unit)
        assert len(cut) == count == len({p.id for p in cut})
        assert [p.text[s.start : s.end] for p in cut for s in p.secrets] == values
    whole = make_points(corpus, unit="dialogue")
    turn_texts = [p.text for p in make_points(corpus, unit="turn")]
    assert "\n".join(p.text for p in whole) == "\n".join(turn_texts)


def test_unit_has_no_default():
    with pytest.raises(TypeError):
        make_points(simulate_corpus(1, 0))
    with pytest.raises(ValueError, match="unit='word': must be one of turn, dialogue"):
        make_points(simulate_corpus(1, 0), unit="word")


SGD = [
    {
        "dialogue_id": f"1_{i}",
        "turns": [
            {
                "speaker": "USER",
                "utterance": f"Call Ada at 555-010{i}.",
                "frames": [{"service": "S_1", "slots": [slot]} for slot in slots],
            }
        ],
    }
    for i, slots in enumerate(
        [[{"slot": "phone_number", "start": 12, "exclusive_end": 20}], [], [{"start": 9}]]
    )
]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of all corpora that ``load`` knows, a few lines each."""
    for folder in ("sgd/train", "wikitext-2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sgd/train/dialogues_001.json").write_text(json.dumps(SGD))
    (tmp_path / "wikitext-2/wiki.test.tokens").write_text(" = A = \n b 7 \n")
    monkeypatch.setenv("CRTLIB_DATA", str(tmp_path))
    return tmp_path


def test_load_by_name(data, monkeypatch):
    sgd = corpora.load_corpus("schema_guided")
    assert sgd.name == "schema_guided" and len(sgd) == 2
    assert sgd.skipped == (("a span runs outside its utterance", 1),)
    assert len(corpora.load_corpus("schema_guided", limit=1)) == 1
    assert next(corpora.load_corpus("wikitext2", "test").turns()).values() == ("7",)
    write_jsonl(sgd, data / "own.jsonl")
    assert corpora.load_corpus(data / "own.jsonl").dialogues == sgd.dialogues
    for name, split, ok in (
        ("schema_guided", None, True),
        ("schema_guided", "dev", False),
        ("wikitext2", "test", True),
        ("multiwoz", None, False),
        (data / "own.jsonl", None, True),
        (data / "no.jsonl", None, False),
        ("nothing", None, False),
    ):
        assert corpora.is_corpus_available(name, split) is ok, name
        if not ok:
            with pytest.raises(ValueError) as error:
                corpora.load_corpus(name, split or "train")
            assert "\n" not in str(error.value)
            where = {"multiwoz": "https://github.com/budzianowski/multiwoz"}.get(str(name), "")
            assert where in str(error.value)
    with pytest.raises(ValueError, match="limit=0: must be at least 1"):
        corpora.load_corpus("schema_guided", limit=0)
    with pytest.raises(ValueError, match=r"split='test': .* is one file"):
        corpora.load_corpus(data / "own.jsonl", "test")
    monkeypatch.delenv("CRTLIB_DATA")
    assert not corpora.is_corpus_available("schema_guided")
    assert corpora.is_corpus_available("schema_guided", folder=data / "sgd")
    with pytest.raises(ValueError, match=r"set folder or CRTLIB_DATA; the corpus is at https"):
        corpora.load_corpus("schema_guided")


def test_fingerprint_is_the_content(data):
    first = corpora.corpus_fingerprint("schema_guided")
    assert len(first) == 64
    path = data / "sgd/train/dialogues_001.json"
    path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert (
        corpora.corpus_fingerprint("schema_guided")
        == first
        == corpora.corpus_fingerprint("schema_guided")
    )
    (data / "sgd/train/dialogues_002.json").write_text("[]")
    second = corpora.corpus_fingerprint("schema_guided")
    (data / "sgd/train/dialogues_002.json").write_text("[ ]")
    assert len({first, second, corpora.corpus_fingerprint("schema_guided")}) == 3
    with pytest.raises(ValueError, match="no such file"):
        corpora.corpus_fingerprint(data / "no.jsonl")


def test_sgd_goes_through_jsonl_on_the_command_line(data, monkeypatch, capsys):
    out = data / "out.jsonl.gz"

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["crtlib", "convert", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    code, said, _ = run("schema_guided", "--split", "train", "--out", out)
    assert (
        code == 0
        and corpora.read_corpus_at(out).dialogues == corpora.load_corpus("schema_guided").dialogues
    )
    assert "2 dialogues, 2 turns, 1 of them with a secret" in said
    assert "phone 1" in said and "left out: 1 (a span runs outside its utterance)" in said
    code, said, error = run("schema_guided", "--split", "dev", "--out", data / "no.jsonl")
    assert code == 2 and not said and error.count("\n") == 1
    assert not (data / "no.jsonl").exists()


@pytest.fixture
def on_the_hub(tmp_path, monkeypatch):
    """Parquet files in a folder, loaded as those of the hub are."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(
        readers, "hub_address", lambda name, split: str(tmp_path / f"{split}*.parquet")
    )

    def store(split, rows):
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / f"{split}-0.parquet")

    return store


def test_a_table_on_the_hub_is_read_as_one_of_ones_own(on_the_hub, tmp_path):
    rows = [{"id": "1", "abstract": "We prove that P."}, {"id": "2", "abstract": "b 7"}]
    on_the_hub("part", rows)
    how = {"columns": dict(text="abstract", thread="id"), "no_users": True}
    made = ingest.ingest_sources(["hub:a/arxiv"], tmp_path / "o", split="part", **how)
    assert made.facts.threads == 2
    assert [t.text for t in corpora.load_corpus(tmp_path / "o", "part").turns()] == [
        row["abstract"] for row in rows
    ]
    with pytest.raises(ValueError, match="cannot be read") as error:
        ingest.ingest_sources(["hub:a/arxiv"], tmp_path / "p", split="none", **how)
    assert "\n" not in str(error.value)


def test_where_the_hub_keeps_a_split():
    base = "hf://datasets/"
    for name, split, where in (
        ("Salesforce/wikitext/wikitext-103-raw-v1", "test", "wikitext-103-raw-v1/test"),
        ("ada/own", "train", "default/train"),
    ):
        repository = "/".join(name.split("/")[:2])
        expected = f"{base}{repository}@refs/convert/parquet/{where}/*.parquet"
        assert readers.hub_address(f"hub:{name}", split) == expected
    for name, split in (("hub:wikitext", "train"), ("hub:a/b/c/d", "train"), ("hub:a/b", "../x")):
        with pytest.raises(ValueError, match="must be hub:owner/name"):
            readers.hub_address(name, split)


def test_the_hub_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs the package datasets \(pip install datasets\)"):
        next(readers.read_rows("hub:Salesforce/wikitext", "hub", readers.IngestOptions()))
