"""The golden path as a library: a table in, a function as policy, Parquet and a verdict out."""

import runpy
from pathlib import Path

import pandas as pd
import pytest

import confide
import crtlib
from crtlib.screening import policy_registry
from crtlib.text import corpora

datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_messages.py"


@pytest.fixture
def example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    yield runpy.run_path(str(EXAMPLE))
    policy_registry.REGISTERED_MAKERS.pop("codes")


def rows(talks):
    return [
        {"person": talk.user, "talk": talk.id, "who": turn.speaker, "body": turn.text}
        for talk in talks
        for turn in talk.turns
    ]


def test_twelve_lines_from_a_dataset_to_a_certificate(example, capsys):
    talks = crtlib.simulate(300, seed=77).dialogues
    path = example["golden_path"]
    path.__globals__["said"] = {turn.text: turn.secrets for talk in talks for turn in talk.turns}
    public, verdict = path(datasets.Dataset.from_list(rows(talks)))
    assert verdict == "holds" and "'met': True" in capsys.readouterr().out
    assert pd.read_parquet("screened/public/data").equals(public.to_pandas())
    assert not Path("certificate.json").read_text().count(talks[0].user)


def test_a_table_makes_the_corpus_that_its_file_makes(tmp_path):
    frame = pd.DataFrame(rows(crtlib.simulate(20, seed=1).dialogues))
    frame.to_csv(tmp_path / "t.csv", index=False)
    columns = {"user": "person", "thread": "talk", "speaker": "who", "text": "body"}
    tables = {"csv": tmp_path / "t.csv", "pandas": frame}
    tables |= {"index": frame.set_index("who", drop=False).rename_axis("key")}
    tables |= {"datasets": datasets.Dataset.from_pandas(frame)}
    for name, table in tables.items():
        made = confide.ingest(table, tmp_path / name, columns=columns)
        assert made.rows == len(frame) and not made.rejected
        again = confide.ingest(table, tmp_path / name, columns=columns)
        assert again.up_to_date
    assert len({corpora.hash_corpus(tmp_path / name) for name in tables}) == 1
    with pytest.raises(ValueError, match="body"):
        confide.ingest(frame.drop(columns="body"), tmp_path / "none", columns=columns)
    assert not (tmp_path / "none").exists()


def test_no_cell_of_a_table_in_memory_is_quoted(tmp_path):
    """Fault: a library's error did, of whatever column could not be converted."""
    rows = {"user": ["ann", "bob"], "text": ["hi", "there"], "colour": [7, "my PIN is Rosebud"]}
    assert confide.ingest(pd.DataFrame(rows), tmp_path / "o").facts.turns == 2
    assert confide.ingest(
        datasets.Dataset.from_dict(rows | {"colour": [7, 8]}), tmp_path / "d"
    ).rows
    frame = pd.DataFrame(rows | {"text": ["my PIN is Rosebud", 7]})
    with pytest.raises(ValueError, match=r"^sources: .* Parquet cannot hold \(Arrow") as error:
        confide.ingest(frame, tmp_path / "p")
    assert "Rosebud" not in str(error.value) and not (tmp_path / "p").exists()
    with pytest.raises(ValueError, match="no column looks like the text or the person"):
        confide.ingest(frame[["colour"]].astype(str), tmp_path / "p")
