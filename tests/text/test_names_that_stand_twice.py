"""Of two columns or fields of one name none is passed over in silence, and odd headers are read."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from confide.labels import imports
from confide.release import seal
from confide.text import ingest
from confide.training import secret_holders
from crtlib.screening import value_lists
from crtlib.text import corpora

CANARY = "Zebulonia"


def take(path, out, **how):
    return ingest.ingest_sources([path], out, yes=True, **how)


def said(folder):
    return [(d.user, t.text) for d in corpora.read_corpus_at(folder).dialogues for t in d.turns]


# --------------------------------------------------------------------------- lists of values
def test_a_list_with_two_columns_of_one_name_is_refused(tmp_path):
    (tmp_path / "l.csv").write_text(f"secret,secret\nSmith,{CANARY}\n")
    table = pa.table([["Smith"], [CANARY]], names=["secret", "secret"])
    pq.write_table(table, tmp_path / "l.parquet")
    for name in ("l.csv", "l.parquet"):
        with pytest.raises(ValueError, match="columns 1 and 2 have one name") as error:
            value_lists.list_policy(str(tmp_path / name))
        assert CANARY not in str(error.value)


@pytest.mark.parametrize("row", [f"Smith, {CANARY}", "", '"Smith'])
def test_a_row_of_a_list_with_other_cells_than_the_header_is_refused(tmp_path, row):
    """One more cell made the first column a name of the row, and the value was never sought."""
    (tmp_path / "l.csv").write_text(f"secret\nJones\n{row}\n")
    if not row:
        assert len(value_lists.read_value_table(tmp_path / "l.csv", "l")) == 1
        return
    with pytest.raises(ValueError, match=r"row 3 has 2 cells|cannot be read \(Error\)") as error:
        value_lists.list_policy(str(tmp_path / "l.csv"))
    assert CANARY not in str(error.value)


def test_a_list_is_read_as_it_was(tmp_path):
    content = b'\xef\xbb\xbfsecret,kind\r\n"a, b",name\r\n\r\nNA,\r\n'
    (tmp_path / "l.csv").write_bytes(content)
    table = value_lists.read_value_table(tmp_path / "l.csv", "l")
    columns = {"secret": ["a, b", "NA"], "kind": ["name", ""]}
    expected = pd.DataFrame(columns, index=[2, 4], dtype=str)  # rows as a spreadsheet counts them
    pd.testing.assert_frame_equal(table, expected)


def test_a_table_of_secrets_without_a_header_quotes_no_value(tmp_path):
    (tmp_path / "s.csv").write_text(f"{CANARY},smith\n")
    with pytest.raises(ValueError, match="has no column user and secret") as error:
        secret_holders._read_secret_table(tmp_path / "s.csv", 0.1, 0.2)
    assert CANARY not in str(error.value)


# --------------------------------------------------------------------------- JSON
def test_a_message_with_a_name_twice_is_a_bad_row(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"user": "ann", "text": "one", "text": "two"}\n{"user": "bob", "text": "hi"}\n'
    )
    summary = take(path, tmp_path / "o", skip_bad=True, max_bad=0.5)
    assert dict(summary.rejected) == {"a name twice": 1} and said(tmp_path / "o") == [("bob", "hi")]
    with pytest.raises(ValueError, match=r"in.jsonl, row 1.*a repeated name"):
        take(path, tmp_path / "p")


@pytest.mark.parametrize(
    "text",
    [
        '{"tasks": [], "tasks": []}',
        '[{"task": "a", "done": true, "done": false, "secrets": []}]',
        '{"task": "a", "done": true, "secrets": []}\n{"task": "b", "task": "c", "done": true}',
    ],
)
def test_labels_in_which_a_name_stands_twice_are_refused(tmp_path, text):
    (tmp_path / "done.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"done.json: holds an object in which a name stands twice"
    ):
        imports._read_export(tmp_path / "done.json", {}, ["name"], "page")


def test_a_sealed_file_in_which_a_name_stands_twice_is_damaged(tmp_path):
    key = seal.ensure_signing_key(tmp_path)
    text = json.dumps(seal.sign_value({"epsilon": 3}, key))
    (tmp_path / "a.json").write_text('{"epsilon": 1, ' + text[1:])
    with pytest.raises(ValueError, match="is damaged"):
        seal.read_signed(tmp_path / "a.json")


# --------------------------------------------------------------------------- headers
@pytest.mark.parametrize(
    "text",
    [
        "sep=;\r\nuser;text\r\nann;a, b\r\n",
        "\ufeffsep=\t\nuser\ttext\nann\ta, b\n",
        'user,"the\r\ntext"\r\nann,"a, b"\r\n',
        'user,text\nann,"a, b"\nuser,text\n',
    ],
)
def test_what_spreadsheets_write_is_read(tmp_path, text):
    (tmp_path / "in.csv").write_text(text, newline="")
    column = {"text": "the text"} if "the" in text else {}
    take(tmp_path / "in.csv", tmp_path / "o", columns=column)
    assert said(tmp_path / "o") == [("ann", "a, b")]


def test_a_header_with_an_open_quote_is_one_line(tmp_path):
    (tmp_path / "in.csv").write_text(f'user,"text\nann,{CANARY}\n')
    with pytest.raises(ValueError, match="its header has a quote that is out of place") as error:
        take(tmp_path / "in.csv", tmp_path / "o")
    assert CANARY not in str(error.value)
