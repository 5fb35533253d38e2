"""Every label that is kept lies in its text, and what is left out is counted."""

import gzip
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crtlib.text import corpora, multiwoz
from crtlib.text.records import Secret, check_spans


def label(slot, start, end, **more):
    return {"slot": slot, "start": start, "exclusive_end": end, **more}


def turn(text, *slots, speaker="USER", **more):
    frames = [{"service": "Banks_1", "slots": list(slots), "actions": []}]
    return {"speaker": speaker, "utterance": text, "frames": frames, **more}


PAY = turn("Wire $20 to Ada, now.", label("amount", 5, 8), label("recipient_name", 12, 15))
BOOKED = turn("Your reference is F3K2PQZZ.", speaker="SYSTEM", turn_id="0")
ACTS = {"W": {"0": {"span_info": [["Booking-Book", "ref", "F3K2PQZZ", 18, 26]]}}}


def dialogue(*turns, name="1_0"):
    return {"dialogue_id": name, "services": ["Banks_1"], "turns": list(turns)}


def write(folder, split, *files, acts=None):
    (folder / split).mkdir(parents=True, exist_ok=True)
    for i, content in enumerate(files, 1):
        (folder / split / f"dialogues_{i:03d}.json").write_text(json.dumps(content))
    if acts is not None:
        (folder / "dialog_acts.json").write_text(json.dumps(acts))
    return folder


def values(corpus):
    return [(s.kind, t.text[s.start : s.end]) for t in corpus.turns() for s in t.secrets]


def test_one_loader_for_both(tmp_path):
    write(tmp_path, "train", [dialogue(PAY)], [dialogue(PAY, name="1_1"), dialogue(name="1_2")])
    corpus = multiwoz.read_multiwoz(tmp_path, "train", name="sgd")
    assert [(d.id, d.user) for d in corpus.dialogues] == [("1_0", "1_0"), ("1_1", "1_1")]
    assert values(corpus) == [("amount", "$20"), ("name", "Ada")] * 2
    assert corpus.skipped == (("it has no id or no turns", 1),)
    assert [t.speaker for t in corpus.turns()] == ["USR", "USR"]
    assert len(multiwoz.read_multiwoz(tmp_path, "train", limit=1)) == 1

    write(tmp_path, "dev", [dialogue(BOOKED, name="W"), dialogue(BOOKED, name="V")], acts=ACTS)
    booked = multiwoz.read_multiwoz(tmp_path, "dev")
    assert booked.name == tmp_path.name and next(booked.turns()).speaker == "SYS"
    assert values(booked) == [("reference", "F3K2PQZZ")]
    assert booked.skipped == (("it has no dialogue acts", 1),)
    for path in tmp_path.rglob("*.json"):
        path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert multiwoz.read_multiwoz(tmp_path, "dev") == booked


def test_without_its_acts_multiwoz_is_refused(tmp_path):
    write(tmp_path, "dev", [dialogue(BOOKED, name="W")])
    with pytest.raises(ValueError, match=r"dialog_acts.json: is missing"):
        multiwoz.read_multiwoz(tmp_path, "dev")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (turn("Ada", label("recipient_name", 0, 4)), "a span runs outside its utterance"),
        (turn("Ada", label("movie_name", 0, 4)), "a span runs outside its utterance"),
        (turn("Ada", label("recipient_name", 2, 2)), "a span runs outside its utterance"),
        (turn("Ada", label("recipient_name", -3, 2)), "a span runs outside its utterance"),
        (turn("Ada", label("recipient_name", 0, True)), "a span runs outside its utterance"),
        (turn("Ada", label("recipient_name", 0, None)), "a span runs outside its utterance"),
        (turn("Ada", label("recipient_name", 0, 3, value="Bob")), "a span does not hold its value"),
        (turn(None), "an utterance is not text"),
        (turn("\ud800"), "an utterance is not text"),
        (turn("hi", speaker="BOT"), "a speaker is neither USER nor SYSTEM"),
        (turn("hi", speaker=["USER"]), "a speaker is neither USER nor SYSTEM"),
        ({"speaker": "USER", "utterance": "hi", "frames": ["x"]}, "it is malformed"),
        ({"speaker": "USER", "utterance": "hi", "frames": {"slots": [[]]}}, "it is malformed"),
        ("hi", "it is malformed"),
    ],
)
def test_a_defect_takes_its_whole_dialogue(bad, reason):
    rows = [dialogue(PAY), dialogue(PAY, bad, name="1_1"), dialogue(PAY, name="1_0"), 7]
    corpus = multiwoz.parse_multiwoz(rows, name="c")
    assert [d.id for d in corpus.dialogues] == ["1_0"]
    counts = dict(corpus.skipped)
    assert counts.pop("its id was used before") == counts.pop("it has no id or no turns") == 1
    ((why, count),) = counts.items()
    assert reason in why and count == 1
    with pytest.raises(ValueError, match="c: holds no dialogue that can be used") as error:
        multiwoz.parse_multiwoz(rows[1:2], name="c")
    assert reason in str(error.value) and "Ada" not in str(error.value)


def test_values_carried_over_are_no_spans():
    carried = {"slot": "taxi-destination", "copy_from": "hotel-name", "value": ["x"]}
    assert values(multiwoz.parse_multiwoz([dialogue(turn("There.", carried))], name="c")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(json.dumps([dialogue(PAY)] * 99).encode())[:-40], "damaged gzip file"),
        (b'[{"dialogue_id": "1', "is not JSON in UTF-8"),
        (b'[{"dialogue_id": "\xff"}]', "is not JSON in UTF-8"),
        (b"[" * 100_000, "is not JSON in UTF-8"),
        (b"{}", "must hold a JSON list"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    write(tmp_path, "train", [dialogue(PAY)], [])
    path = tmp_path / "train" / "dialogues_002.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        multiwoz.read_multiwoz(tmp_path, "train")
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_split_and_bad_limit(tmp_path):
    write(tmp_path, "train", [dialogue(PAY)])
    for split in ("dev", "..", "*"):
        with pytest.raises(ValueError, match="it has the splits: train"):
            multiwoz.read_multiwoz(tmp_path, split)
    with pytest.raises(ValueError, match="limit=0: must be at least 1"):
        multiwoz.read_multiwoz(tmp_path, "train", limit=0)


cuts = st.tuples(st.sampled_from(["amount", "ref", "movie_name"]), st.integers(0, 9)).flatmap(
    lambda t: st.tuples(st.just(t[0]), st.just(t[1]), st.integers(t[1] - 1, 12))
)


@given(st.lists(st.lists(cuts, max_size=5), min_size=1, max_size=4))
def test_labels_lie_in_their_text(all_cuts):
    text = "0123456789"
    turns = [turn(text, *(label(*c) for c in cs)) for cs in all_cuts]
    rows = [dialogue(t, name=str(i)) for i, t in enumerate(turns)]
    whole = [i for i, cs in enumerate(all_cuts) if all(0 <= a < b <= 10 for _, a, b in cs)]
    try:
        corpus = multiwoz.parse_multiwoz(rows, name="c")
    except ValueError:
        assert not whole
        return
    assert [d.id for d in corpus.dialogues] == [str(i) for i in whole]
    assert sum(count for _, count in corpus.skipped) == len(rows) - len(whole)
    for d in corpus.dialogues:
        (t,) = d.turns
        check_spans(t.text, t.secrets)
        secret = [c for c in all_cuts[int(d.id)] if c[0] != "movie_name"]
        covered = {x for s in t.secrets for x in range(s.start, s.end)}
        assert covered == {x for _, a, b in secret for x in range(a, b)}


def test_overlaps_become_one():
    spans = [Secret("b", 3, 6), Secret("a", 0, 4), Secret("c", 6, 7), Secret("a", 0, 4)]
    assert multiwoz.join_overlapping_labels(spans) == (Secret("a", 0, 6), Secret("c", 6, 7))


needs = {
    name: pytest.mark.skipif(
        not corpora.is_corpus_available(name), reason=f"CRTLIB_DATA is unset or has no {name}"
    )
    for name in ("multiwoz", "multiwoz_held_out", "schema_guided")
}


def raw(split):
    """MultiWOZ as its files have it: dialogues and acts."""
    *paths, acts = multiwoz.MULTIWOZ_SOURCE.check(split, None)
    return [
        d for path in paths for d in multiwoz._read_json_file(path, list)
    ], multiwoz._read_json_file(acts, dict)


@needs["multiwoz"]
def test_multiwoz_references_are_all_labelled():
    corpus = corpora.load_corpus("multiwoz", "dev")
    dialogues, acts = raw("dev")
    assert len(corpus) + sum(n for _, n in corpus.skipped) == len(dialogues)
    references = 0
    for d in corpus.dialogues:
        for i, t in enumerate(d.turns):
            for _, slot, value, _, _ in acts[d.id][str(i)]["span_info"]:
                if slot in ("ref", "phone", "postcode"):
                    references += slot == "ref"
                    assert any(value in v for v in t.values())
    assert references == sum(kind == "reference" for kind, _ in values(corpus)) > 0


@needs["multiwoz_held_out"]
@pytest.mark.parametrize(
    ("split", "dialogues", "references"),
    [("train", 1599, 1300), ("dev", 200, 157), ("test", 200, 174)],
)
def test_the_dialogues_of_all_domains_are_read_whole(split, dialogues, references):
    corpus = corpora.load_corpus("multiwoz_held_out", split)
    assert (len(corpus), corpus.skipped) == (dialogues, ())
    kinds = [kind for kind, _ in values(corpus)]
    assert kinds.count("reference") == references
    assert set(kinds) == {"address", "phone", "postcode", "reference"}


@needs["schema_guided"]
def test_schema_guided_numbers_are_all_labelled():
    corpus = corpora.load_corpus("schema_guided", "dev", limit=500)
    assert corpus.skipped == () and len(corpus) == 500
    number = re.compile(r"\+?\d[\d() -]{7,}\d")
    found = 0
    for t in corpus.turns():
        check_spans(t.text, t.secrets)
        for m in number.finditer(t.text):
            found += 1
            assert any(s.start <= m.start() and m.end() <= s.end for s in t.secrets)
    assert found > 50
    assert {kind for kind, _ in values(corpus)} == {"address", "amount", "name", "phone"}
