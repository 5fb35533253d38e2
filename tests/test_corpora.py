"""Files come back as they were written, and a bad line is named."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crtlib.corpora import points, read_customersim_shi2021, read_jsonl, write_jsonl
from crtlib.customersim import simulate
from crtlib.records import Corpus, Dialogue, Secret, Turn

GOOD = {"id": "d0", "user": "u", "turns": [{"speaker": "USR", "text": "I am Ada.", "secrets": []}]}


@st.composite
def turns(draw):
    text = draw(st.text(min_size=1, max_size=30).filter(lambda t: t.isprintable()))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = zip(cuts[::2], cuts[1::2], strict=False)
    return Turn(
        draw(st.sampled_from(["SYS", "USR", "Ä"])), text, tuple(Secret("k", *s) for s in spans)
    )


dialogues = st.lists(st.lists(turns(), min_size=1, max_size=3), min_size=1, max_size=4).map(
    lambda all_turns: tuple(Dialogue(f"d{i}", "u", tuple(t)) for i, t in enumerate(all_turns))
)


@given(dialogues, st.sampled_from(["c.jsonl", "c.jsonl.gz"]))
def test_round_trip(tmp_path_factory, made, name):
    path = tmp_path_factory.mktemp("corpus") / name
    corpus = Corpus("c", made)
    write_jsonl(corpus, path)
    assert read_jsonl(path) == corpus
    assert len(list(path.parent.iterdir())) == 1
    first = path.read_bytes()
    write_jsonl(iter(made), path)
    assert path.read_bytes() == first


def test_format_is_the_documented_one(tmp_path):
    write_jsonl(simulate(2, 0), tmp_path / "c.jsonl")
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
        ("[1, 2]", "a dialogue must be a JSON object"),
        ('{"id": "d1"}', "a dialogue needs 'user', a string"),
        (bad(id=7), "a dialogue needs 'id', a string"),
        (bad(id="d1", turns={}), "a dialogue needs 'turns', a list"),
        (bad(id="d1", turns=[]), "a dialogue needs at least one turn"),
        (bad(id="d1", turns=["USR: hi"]), "turn 0 must be a JSON object"),
        (bad_turn(text=None), "turn 0 needs 'text', a string"),
        (bad_turn(secrets=[[0, 1]]), "a secret of turn 0 must be a JSON object"),
        (bad_turn(secrets=[{"kind": "k", "start": True, "end": 3}]), "needs 'start', an integer"),
        (
            bad_turn(secrets=[{"kind": "k", "start": 5, "end": 10}]),
            r"turn 0: secret 'k' at \[5, 10\): must lie inside its text of 9 characters",
        ),
        (
            bad_turn(secrets=[{"kind": "k", "start": s, "end": 6} for s in (2, 5)]),
            "must not overlap",
        ),
        (bad(), "id 'd0' was used on line 1"),
    ],
)
def test_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "c.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{line}\n")
    with pytest.raises(ValueError, match=message) as error:
        read_jsonl(path)
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
        (tmp_path, "no such file"),
        (empty, "is empty, at least one dialogue is needed"),
        (packed, r"damaged gzip file"),
        (text, "line 1: is not JSON"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            read_jsonl(path)
        assert str(path) in str(error.value)


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "c.jsonl"
    write_jsonl(simulate(2, 0), path)
    old = path.read_bytes()

    def failing():
        yield simulate(1, 1).dialogues[0]
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
    corpus = read_customersim_shi2021(tmp_path, "train")
    assert [d.id for d in corpus.dialogues] == ["dial-0.txt"]
    said = [(t.speaker, t.text, t.secrets) for t in corpus.turns()]
    assert said == [("SYS", "Hello: you?", ()), ("USR", "I am Ada Lovelace. ", ())]
    with pytest.raises(ValueError, match="split='dev': must be one of train, valid, test"):
        read_customersim_shi2021(tmp_path, "dev")
    with pytest.raises(ValueError, match=r"test.jsonl.gz: no such file"):
        read_customersim_shi2021(tmp_path, "test")


@given(dialogues)
def test_points_keep_the_secrets(made):
    corpus = Corpus("c", made)
    values = [v for t in corpus.turns() for v in t.values()]
    for unit, count in (("turn", sum(1 for _ in corpus.turns())), ("dialogue", len(corpus))):
        cut = points(corpus, unit=unit)
        assert len(cut) == count == len({p.id for p in cut})
        assert [p.text[s.start : s.end] for p in cut for s in p.secrets] == values
    whole = points(corpus, unit="dialogue")
    turn_texts = [p.text for p in points(corpus, unit="turn")]
    assert "\n".join(p.text for p in whole) == "\n".join(turn_texts)


def test_unit_has_no_default():
    with pytest.raises(TypeError):
        points(simulate(1, 0))
    with pytest.raises(ValueError, match="unit='word': must be one of turn, dialogue"):
        points(simulate(1, 0), unit="word")
