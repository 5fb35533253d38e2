"""Every number of WikiText is a secret, paragraphs are points, and cuts keep neighbours aligned."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crtbook.secrets import cut_sentences
from crtlib.text import corpora, wikitext
from crtlib.text.data_points import make_points
from crtlib.text.records import MASK, Point, Secret, check_spans

TEXT = (
    " \n = Lobster = \n \n It grows to 0 @.@ 6 m ( 24 in ) . It is blue . \n"
    " = = Life = = \n Red\u2028!\n"
)


def test_paragraphs_and_numbers(tmp_path):
    (tmp_path / "wiki.valid.tokens").write_text(TEXT)
    corpus = wikitext.read_wikitext(tmp_path, "valid")
    assert [t.text for t in corpus.turns()] == [
        "It grows to 0 @.@ 6 m ( 24 in ) . It is blue .",
        "Red\u2028!",  # only a newline ends a paragraph
    ]
    assert [t.values() for t in corpus.turns()] == [("0", "6", "24"), ()]
    assert corpus.skipped == (("heading", 2),)
    assert len({d.user for d in corpus.dialogues}) == 2
    assert make_points(corpus, unit="turn")[0].text.startswith("It grows")
    (tmp_path / "wiki.test.raw.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert list(wikitext.read_wikitext(tmp_path, "test").turns()) == list(corpus.turns())


def test_bad_files(tmp_path):
    (tmp_path / "wiki.train.tokens").write_bytes(b"good\n\xff\n")
    (tmp_path / "wiki.valid.raw.gz").write_bytes(gzip.compress(TEXT.encode() * 99)[:-30])
    (tmp_path / "wiki.test.raw").write_text(" = Only = \n")
    for split, message in (
        ("train", r"wiki.train.tokens: is not UTF-8"),
        ("valid", r"wiki.valid.raw.gz: damaged gzip file"),
        ("test", "split='test': holds no paragraph"),
        ("dev", "split='dev': must be one of train, valid, test"),
    ):
        with pytest.raises(ValueError, match=message):
            wikitext.read_wikitext(tmp_path, split)
    with pytest.raises(ValueError, match=r"has no wiki.test.tokens or .raw"):
        wikitext.read_wikitext(tmp_path / "no", "test")


def test_what_there_is_is_cut_as_one_where_the_training_text_is_not(tmp_path):
    (tmp_path / "wiki.valid.raw").write_text(" = A = \n It has 24 . \n")
    (tmp_path / "wiki.test.raw").write_text(" It has 7 . \n")
    both = wikitext.read_held_out_wikitext(tmp_path)
    assert [t.values() for t in both.turns()] == [("24",), ("7",)]
    assert (len({d.id for d in both.dialogues}), both.skipped) == (2, (("heading", 1),))
    with pytest.raises(ValueError, match="split='test': must be train"):
        wikitext.WIKITEXT_CUT_SOURCE.check("test", tmp_path)


def test_sentences_are_whole():
    text = 'It has 24 . " H. gammarus " is by Mr. Smith of Rome ! It is large. So is e.g. this one.'
    cut = cut_sentences([Point("p", "u", text, (Secret("number", 7, 9),))])
    assert [p.text for p in cut] == [
        "It has 24 .",
        '" H. gammarus " is by Mr. Smith of Rome !',
        "It is large.",
        "So is e.g. this one.",
    ]
    assert [p.id for p in cut] == ["p/0", "p/1", "p/2", "p/3"]
    assert [p.text[s.start : s.end] for p in cut for s in p.secrets] == ["24"]


words = st.sampled_from(["Ada", "left", "there.", ".", "!", "why?", "M.D.", "in", "7", "\n", "St."])


@given(st.lists(words, min_size=1, max_size=25), st.data())
def test_sentences_of_neighbours_are_cut_alike(tokens, data):
    text = " ".join(tokens)
    bounds = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = tuple(Secret("k", a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=False))
    cut = cut_sentences([Point("p", "u", text, spans)])
    # No secret is cut or lost, and nothing but white space between sentences is.
    values = [p.text[s.start : s.end] for p in cut for s in p.secrets]
    assert values == [text[s.start : s.end] for s in spans]
    assert "".join("".join(p.text for p in cut).split()) == "".join(text.split())
    for p in cut:
        check_spans(p.text, p.secrets)
    # The neighbour: one secret reads <MASK> and has no label any more.
    for i, s in enumerate(spans):
        move = len(MASK) - (s.end - s.start)
        after = tuple(Secret("k", o.start + move, o.end + move) for o in spans[i + 1 :])
        masked = text[: s.start] + MASK + text[s.end :]
        other = cut_sentences([Point("p", "u", masked, spans[:i] + after)])
        different = [(p, o) for p, o in zip(cut, other, strict=True) if p.text != o.text]
        assert len(different) <= 1
        assert all(o.text.count(MASK) == 1 for _, o in different)


@pytest.mark.skipif(
    not corpora.is_corpus_available("wikitext2", "valid"),
    reason="CRTLIB_DATA is unset or has no folder wikitext-2 with the split valid",
)
def test_wikitext_itself():
    corpus = corpora.load_corpus("wikitext2", "valid")
    assert (len(corpus), corpus.skipped) == (1841, (("heading", 620),))
    for t in corpus.turns():
        rest, at = "", 0
        for s in t.secrets:
            rest, at = rest + t.text[at : s.start], s.end
        assert not any(c.isdecimal() for c in rest + t.text[at:])
    paragraphs = make_points(corpus, unit="turn")
    cut = cut_sentences(paragraphs)
    assert sum(len(p.secrets) for p in cut) == sum(len(p.secrets) for p in paragraphs)
    assert len(cut) > 4 * len(paragraphs)
    assert max(len(p.text.split()) for p in cut) < 256
