"""Who speaks, and where a message ends: a screened folder keeps it, and masks hide it."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.reports import screening_page
from confide.screening.corpus_screening import ScreeningOptions
from confide.training.study_of_text import build_study
from crtlib.screening.policy import Policy
from crtlib.screening.rates import measure_rates
from crtlib.screening.redaction import redact
from crtlib.screening.regex_policies import everything_policy
from crtlib.studies.study_data import prepare_data
from crtlib.text import corpora, screened_folder, templates
from crtlib.text.data_points import find_turns, join_with_speakers
from crtlib.text.records import MASK, Dialogue, Point, Secret, Turn
from tests.fuzz.home import mark_again

SPEAKERS = st.sampled_from(["", "USR", "Agent", "S1"])
TURNS = st.lists(st.builds(Turn, SPEAKERS, st.text("ab:\n", max_size=5)), min_size=1, max_size=4)


def written_again(point):
    turns = [Turn(role, point.text[a:b]) for a, b, role in find_turns(point)]
    return join_with_speakers(Dialogue("", "", ()), turns, "").text


def without_what_is_masked(point, masks):
    """A point with z in place of what is masked: of its turns those that began there are none."""
    text = point.text
    for s in masks:
        text = text[: s.start] + "z" * (s.end - s.start) + text[s.end :]
    covered = {i for s in masks for i in range(s.start, s.end)}
    spans: list[tuple[int, int]] = []
    for a, b in point.spoken_spans:
        before = spans[-1][1] if spans else 0
        hidden = covered & {*range(before, a)} or (before in covered and before - 1 in covered)
        if spans and hidden:
            spans[-1] = spans[-1][0], b
        else:
            spans.append((0 if hidden else a, b))
    return Point("", "", text, (), tuple(spans))


@given(TURNS, st.data())
def test_what_a_mask_covers_changes_no_turn(turns, data):
    """Nor do the turns say more than the text: they are read off it."""
    point = join_with_speakers(Dialogue("", "", ()), turns, "")
    if len(turns) == 1 or all(t.speaker for t in turns):
        assert [(t.speaker, t.text) for t in turns] == [
            (role, point.text[a:b]) for a, b, role in find_turns(point)
        ]
    cuts = data.draw(st.lists(st.integers(0, len(point.text)), max_size=6, unique=True))
    cuts.sort()
    masks = [Secret("", a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    left, other = redact(point, masks), redact(without_what_is_masked(point, masks), masks)
    assert left.text == other.text == written_again(left)
    assert find_turns(left) == find_turns(other)


@pytest.mark.parametrize(
    ("masked", "turns"),
    [
        ("", [("USR", "I am Ann"), ("SYS", "hi Ann")]),
        ("Ann", [("USR", f"I am {MASK}"), ("SYS", "hi Ann")]),
        ("Ann\nSYS: hi", [("USR", f"I am {MASK} Ann")]),
        ("n\nSY", [("USR", f"I am An{MASK}S: hi Ann")]),
        ("SYS: ", [("USR", f"I am Ann\n{MASK}hi Ann")]),
        ("SYS: hi", [("USR", f"I am Ann\n{MASK} Ann")]),  # as if a message had said it
        ("USR: ", [("", f"{MASK}I am Ann"), ("SYS", "hi Ann")]),
    ],
)
def test_a_turn_begins_where_its_beginning_is_in_clear(masked, turns):
    point = join_with_speakers(
        Dialogue("", "", ()), [Turn("USR", "I am Ann"), Turn("SYS", "hi Ann")], ""
    )
    at = point.text.index(masked)
    left = redact(point, [Secret("", at, at + len(masked))] if masked else [])
    assert [(role, left.text[a:b]) for a, b, role in find_turns(left)] == turns


def test_a_secret_that_moves_where_a_turn_begins_leaves_a_trace():
    """The redacted texts are the same; where a message ends follows from what the secret was."""

    def flag(points):
        ends = {True: ("s", "t\nUSR: u"), False: (f"{MASK}\nUSR: t", "u")}
        for p in points:
            found = ends["USR: s" in p.text]
            yield [Secret("", p.text.index(x), p.text.index(x) + len(x)) for x in found]

    said = Turn("USR", "s\nUSR: t", (Secret("name", 0, 1),)), Turn("USR", "u")
    point = replace(join_with_speakers(Dialogue("", "", said), said, "d"), dialogue_id="d")
    seen = measure_rates([point], Policy("of a test", flag), everything_policy, dedup="none")
    assert (seen.miss.failures, seen.trace.failures, seen.trace.judged_secrets) == (0, 1, 1)


SAID = [("USR", "I am Ann Lee"), ("SYS", "your number?"), ("USR", "it is 555 0100"), ("SYS", "yes")]


def screened(home, *, force=False):
    """Conversations of other people each, screened by a list of their names and numbers."""
    rows = []
    for k in range(12):
        texts = [
            t.replace("Lee", f"Lee{'abcdefghijkl'[k]}").replace("0100", f"01{k:02}")
            for _, t in SAID
        ]
        turns = [{"speaker": s, "text": t} for (s, _), t in zip(SAID, texts, strict=True)]
        rows.append({"id": f"d{k}", "user": f"u{k}", "turns": turns})
    (home / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [t for row in rows for t in (row["turns"][0]["text"][5:], row["turns"][2]["text"][6:])]
    (home / "names.txt").write_text("\n".join(names))
    how = ScreeningOptions(f"list:{home / 'names.txt'}", "everything", unit="dialogue")
    screening_page.screen_into_folder(home / "c.jsonl", home / "s", how, force=force)
    return home / "s"


@pytest.mark.parametrize("template", ["speaker", "plain"])
def test_what_was_private_stays_so_under_each_template(template, tmp_path):
    """Also where no mask is left in its words."""
    texts = [f"{word} {k}" for word in ("hello", "secret") for k in range(20)]
    rows = [{"id": t, "user": t, "turns": [{"speaker": "USR", "text": t}]} for t in texts]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "words.txt").write_text("secret")
    how = ScreeningOptions("none", f"list:{tmp_path / 'words.txt'}")
    screening_page.screen_into_folder(tmp_path / "c.jsonl", tmp_path / "s", how)
    study = build_study(tmp_path / "s", template=template, vocab_size=300)
    parts = prepare_data(study, public_words=True).prepared
    words = [
        {p.text.removeprefix("USR: ")[:5] for p in some} for some in (parts.public, parts.private)
    ]
    assert words == [{"hello"}, {"secre"}]


def without_roles(folder):
    """The folder as crtlib 0.4 wrote it."""
    for path in folder.glob("*/data/*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns("turns"), path)
        mark_again(folder, path)
    place = folder / "private" / "summary.json"
    content = json.loads(place.read_text())
    place.write_text(json.dumps(content | {"decided": screened_folder.hash_screened_files(folder)}))
    mark_again(folder, place)
    return folder


def test_a_screened_folder_says_who_spoke(tmp_path):
    folder = screened(tmp_path)
    talks = corpora.load_corpus(folder).dialogues
    assert {tuple((t.speaker, t.text) for t in d.turns) for d in talks} == {
        (("USR", f"I am {MASK}"), ("SYS", "your number?"), ("USR", f"it is {MASK}"), ("SYS", "yes"))
    }
    texts = {d.id: join_with_speakers(d, d.turns, "").text for d in talks}
    assert screened_folder.holds_roles(folder)
    rows = screened_folder.read_screened_rows(folder, "private")
    assert {r["id"]: r["text"] for r in rows} == texts
    chat = templates.CANDIDATE_TEMPLATES["markup"]
    points = templates.render_points(corpora.load_corpus(folder), "dialogue", chat)
    assert {p.text for p in points} == {
        f"<|user|> I am {MASK}\n<|agent|> your number?\n<|user|> it is {MASK}\n<|agent|> yes\n"
    }
    before = corpora.load_corpus(without_roles(folder)).dialogues
    assert {d.id: d.turns[0].text for d in before} == texts
    assert {len(d.turns) for d in before} == {1} and not screened_folder.holds_roles(folder)
    with pytest.raises(ValueError, match="does not say who spoke; choose another folder or fo"):
        screened(tmp_path)
    assert screened_folder.holds_roles(screened(tmp_path, force=True))
