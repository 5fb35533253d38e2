"""Both forms of arXiv's metadata give the same documents, users and topics, one at a time."""

import gzip
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crtlib.text import arxiv, corpora
from crtlib.text.data_points import make_points


def paper(name, text, *, authors=(("Lovelace", "Ada", ""),), **more):
    return {
        "id": name,
        "submitter": "Somebody Else",
        "authors_parsed": [list(a) for a in authors],
        "categories": "math.HO cs.GL",
        "abstract": text,
        "versions": [{"version": "v1", "created": "Mon, 2 Apr 2007 19:18:42 GMT"}],
        **more,
    }


PAPERS = [
    paper("0704.0001", "  We weave\nnumbers.\n\n  They hold.\n"),
    paper("hep-th/9901001", "A loom.", authors=[("Babbage", "C.", "Jr"), ("Lovelace", "Ada", "")]),
    paper("0704.0002", "Again we weave."),
]
SAID = ["We weave numbers. They hold.", "A loom.", "Again we weave."]


def write_snapshot(folder, papers=PAPERS, name="arxiv-metadata-oai-snapshot.json"):
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join((p if isinstance(p, str) else json.dumps(p)) + "\n" for p in papers)
    packed = name.endswith(".gz")
    (folder / name).write_bytes(gzip.compress(lines.encode()) if packed else lines.encode())
    return folder


def write_parquet(folder, rows, name="abstracts-0.parquet"):
    folder.mkdir(parents=True, exist_ok=True)
    names = arxiv.PARQUET_COLUMNS
    table = pa.table({c: [row[i] for row in rows] for i, c in enumerate(names)})
    pq.write_table(table, folder / name)
    return folder


ROWS = [
    ("0704.0001", "math.HO", "2007-04-02", 0, SAID[0]),
    ("hep-th/9901001", "math.HO cs.GL", "1999-01-01", 1, SAID[1]),
    ("0704.0002", "cs.GL", "2007-04-02", 0, SAID[2]),
]


@pytest.mark.parametrize("name", ["arxiv-metadata-oai-snapshot.json", "arxiv-metadata.json.gz"])
def test_the_snapshot_is_read_as_it_is(tmp_path, name):
    found = list(arxiv.stream_abstracts(write_snapshot(tmp_path, name=name)))
    assert [a.text for a in found] == SAID
    assert [a.author for a in found] == ["Lovelace Ada", "Babbage C. Jr", "Lovelace Ada"]
    assert {a.topics for a in found} == {("math.HO", "cs.GL")}
    assert {a.created for a in found} == {"2007-04-02"}


def test_parquet_files_hold_the_same_in_the_order_of_their_names(tmp_path):
    write_parquet(tmp_path, ROWS[2:], "abstracts-1.parquet")
    write_parquet(tmp_path, ROWS[:2])
    found = list(arxiv.stream_abstracts(tmp_path))
    assert [a.text for a in found] == SAID
    assert [a.author for a in found] == ["0", "1", "0"]
    assert [a.topics for a in found] == [("math.HO",), ("math.HO", "cs.GL"), ("cs.GL",)]
    assert [a.created for a in found] == ["2007-04-02", "1999-01-01", "2007-04-02"]


def test_an_abstract_is_a_document_of_its_first_author(tmp_path):
    corpus = arxiv.read_arxiv(write_snapshot(tmp_path))
    assert [(d.id, d.user) for d in corpus.dialogues] == [
        ("0704.0001", "Lovelace Ada"),
        ("hep-th/9901001", "Babbage C. Jr"),
        ("0704.0002", "Lovelace Ada"),
    ]
    assert [p.text for p in make_points(corpus, unit="turn")] == SAID
    assert [p.text for p in make_points(corpus, unit="user")] == [f"{SAID[0]}\n{SAID[2]}", SAID[1]]
    assert len(arxiv.read_arxiv(tmp_path, limit=2)) == 2


def test_what_cannot_be_used_is_left_out_and_counted(tmp_path):
    bad = [
        "{ no json",
        "[1]",
        paper("", "No id."),
        paper("1", " \n "),
        paper("2", "Nobody wrote it.", authors=()),
        paper("3", "Half of a pair: \ud83d"),
        PAPERS[0],
    ]
    assert arxiv.read_arxiv(write_snapshot(tmp_path, [*PAPERS, *bad])).skipped == (
        ("half a surrogate pair", 1),
        ("it has no abstract", 1),
        ("it has no author", 1),
        ("it has no id", 1),
        ("its id was used before", 1),
        ("not JSON", 1),
        ("not a JSON object", 1),
    )
    rows = [*ROWS, ("4", "cs.GL", None, None, "Nobody."), ("5", None, None, 7, "No day, no topic.")]
    skipped = Counter()
    *_, last = arxiv.stream_abstracts(write_parquet(tmp_path / "p", rows), skipped)
    assert (last.id, last.topics, last.created) == ("5", (), "")
    assert skipped == {"it has no author": 1}


@pytest.mark.parametrize(
    "versions", [None, [], ["v1"], [{"version": "v1"}], [{"created": "soon"}], [{"created": 7}]]
)
def test_a_day_that_is_not_said_is_empty(versions):
    assert arxiv.parse_abstract(paper("1", "A loom.", versions=versions)).created == ""


def test_one_abstract_is_read_before_the_next(tmp_path):
    """The file's last line is broken text: what is before it is there before it is met."""
    write_snapshot(tmp_path)
    path = tmp_path / "arxiv-metadata-oai-snapshot.json"
    path.write_bytes(gzip.compress(path.read_bytes() * 5000)[:-30])
    stream = arxiv.stream_abstracts(tmp_path)
    assert next(stream).text == SAID[0]
    with pytest.raises(ValueError, match=r"snapshot.json: damaged gzip file"):
        list(stream)


def test_bad_folders_and_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no arxiv-metadata\*.json\* and no abstracts-\*"):
        arxiv.read_arxiv(tmp_path)
    with pytest.raises(ValueError, match="split='test': must be train"):
        arxiv.arxiv_files(tmp_path, "test")
    (tmp_path / "abstracts-0.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"abstracts-0.parquet: is a damaged Parquet file"):
        arxiv.read_arxiv(tmp_path)
    pq.write_table(
        pa.table({"id": ["1"], "abstract": ["A loom."]}), tmp_path / "abstracts-0.parquet"
    )
    with pytest.raises(ValueError, match=r"has no column category, created, first_author$"):
        arxiv.read_arxiv(tmp_path)
    with pytest.raises(ValueError, match="holds no abstract that can be used"):
        arxiv.read_arxiv(write_snapshot(tmp_path / "empty", [paper("1", "")]))


def test_records_show_no_text_and_no_author():
    shown = repr(arxiv.parse_abstract(PAPERS[1]))
    assert "loom" not in shown and "Babbage" not in shown and "9901001" not in shown


def test_it_is_loaded_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("CRTLIB_DATA", str(tmp_path))
    assert not corpora.is_corpus_available("arxiv")
    write_parquet(tmp_path / "arxiv_abstracts", ROWS)
    assert [t.text for t in corpora.load_corpus("arxiv").turns()] == SAID
    first = corpora.corpus_fingerprint("arxiv")
    write_snapshot(tmp_path / "arxiv")
    assert len(corpora.load_corpus("arxiv", limit=1)) == 1
    assert corpora.corpus_fingerprint("arxiv") != first


@pytest.mark.skipif(
    not corpora.is_corpus_available("arxiv"), reason="CRTLIB_DATA is unset or has no arxiv"
)
def test_arxiv_itself():
    corpus = corpora.load_corpus("arxiv", limit=5000)
    assert len(corpus) == 5000 and corpus.skipped == ()
    assert all(len(d.turns) == 1 and d.user for d in corpus.dialogues)
    assert len({d.user for d in corpus.dialogues}) < 5000
