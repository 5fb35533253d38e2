"""The course: terms come after their definitions, pages follow from data, nothing is fetched."""

import importlib
import json
import math
import re
import sys
from pathlib import Path

import bs4
import pandas as pd
import pytest

from crtbook.figures import tables, theme
from crtcourse import recipes
from tests.book.contrast import contrast

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "book"), str(ROOT / "book" / "_ext")]
teaching = importlib.import_module("teaching")
plain = importlib.import_module("plain")
forms = importlib.import_module("forms")

TERMS = teaching.load_yaml("glossary.yml")
PLAN = teaching.load_yaml("teaching/plan.yml")
SHORT = teaching.load_yaml("teaching/short.yml")
BANK = teaching.load_yaml("teaching/questions.yml")
CHAPTERS = teaching.list_chapters()
LABS = {"lab_attack", "lab_defence"}
AHEAD = (
    r"\[[^\]]*\]\([^)]*\)",  # a link leads to where the term is defined
    r"\{[a-z:]+\}`[^`]*`",
    r"(?s)```\{admonition\} (?:What you will|Before you start).*?```",
    r"`[^`\n]*`",
)


def prose(name):
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    for pattern in AHEAD:
        text = re.sub(pattern, "", text)
    return text


def early(term, texts):
    """The chapters before the defining one that use a term; ``texts`` by name, in order. A page
    that defines a term follows all chapters."""
    names = ["index", *texts, term["chapter"]]
    where = names.index(term["chapter"])
    return [n for n in names[1:where] if re.search(term["find"], texts[n])]


# --------------------------------------------------------------------------- terms
def test_no_term_is_used_before_the_chapter_that_defines_it():
    texts = {name: prose(name) for name in CHAPTERS}
    assert len(TERMS) >= 60
    assert {t["term"]: e for t in TERMS if (e := early(t, texts))} == {}


def test_every_term_is_found_where_it_is_defined():
    for term in TERMS:
        page = ROOT / "book" / f"{term['chapter']}.md"
        text = page.read_text("utf-8") if page.is_file() else prose(term["chapter"])
        assert re.search(term["find"], text), term["term"]


def test_a_term_that_comes_too_early_is_named():
    term = {"chapter": "two", "find": "exposure"}
    assert early(term, {"one": "the exposure of it", "two": "exposure is"}) == ["one"]
    assert early(term, {"one": "nothing", "two": "exposure is"}) == []
    assert early(term | {"chapter": "page"}, {"one": "nothing", "two": "exposure is"}) == ["two"]


# --------------------------------------------------------------------------- data and pages
def test_pages_for_lecturers_follow_from_their_data():
    stale = [p.name for p, text in teaching.render_pages().items() if p.read_text() != text]
    assert stale == [], "run: make teaching"


def test_no_question_leans_on_the_one_before():
    """A quiz and an exam draw them singly: "the same with one coin" was asked of nobody's coin."""
    asked = [question for rows in BANK.values() for _, question, *_ in rows]
    leaning = ("The same", "And ", "Then ", "Again", "What if it", "It ", "They ")
    assert len(asked) > 200 and [q for q in asked if q.startswith(leaning)] == []


def test_every_chapter_has_ten_questions_with_answers():
    assert set(CHAPTERS) - set(BANK) <= LABS | {"cases"}
    assert [name for name, rows in BANK.items() if len(rows) < 10] == []
    for rows in BANK.values():
        assert all(level in teaching.LEVELS and q and a for level, q, a in rows)
        assert len({q for _, q, _ in rows}) == len(rows)


def test_the_plan_names_cells_exercises_and_sections_that_exist():
    known = plain.collect_titles()
    for hour in PLAN + SHORT:
        assert {*hour["read"], *hour.get("also", [])} <= set(CHAPTERS)
        assert {*hour["class"], *hour["home"]} <= set(known)
        for shown in hour["live"]:
            ids = [c["id"] for c in teaching.read_cells(shown["notebook"])]
            assert ids.index(shown["first"]) <= ids.index(shown["last"])
        text = "\n".join(prose(name) for name in hour["read"])
        heads = re.findall(r"(?m)^## (.*)$", text)
        assert set(hour.get("sections", [])) <= set(heads)
    assert len(PLAN) == 10 and len(SHORT) == 3


def test_an_hour_has_sixty_minutes_and_the_book_has_the_order_of_the_hours():
    totals = re.findall(r"(?m)^\| \*\*(\d+)\*\* \|", teaching.render_plan())
    assert len(totals) == 13 and all(30 <= int(n) <= 60 for n in totals)
    read = [CHAPTERS.index(name) for hour in PLAN for name in hour["read"]]
    assert read == sorted(read)


def test_a_quiz_asks_about_what_came_before():
    assert teaching.draw_quiz(1) == []
    for number in range(2, 11):
        asked = {question for _, question, _ in teaching.draw_quiz(number)}
        before = {n for hour in PLAN[: number - 1] for n in hour["read"]}
        assert len(asked) == 5
        assert asked <= {q for name in before for _, q, _ in BANK.get(name, [])}


def test_no_two_quizzes_ask_the_same_and_none_what_is_told_later():
    """The quiz of hour 4 was that of hour 3, and hour 3 asked what only hour 3 tells."""
    quizzes = [[q for _, q, _ in teaching.draw_quiz(number)] for number in range(2, 11)]
    every = [question for quiz in quizzes for question in quiz]
    assert len(set(every)) == len(every)
    third = "\n".join(quizzes[1])
    assert not any(word in third for word in ("chain", "shuffles", "analysts", "post-processing"))


# --------------------------------------------------------------------------- the instructor's
def test_public_pages_hold_no_answer_of_graded_work():
    """Sphinx makes a page of every .md below book, whether or not the contents name it."""
    pages = [*(ROOT / "book").glob("*.md"), *(ROOT / "book" / "teaching").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    every = [a for rows in BANK.values() for _, _, a in rows if len(a) > 60]
    assert len(every) > 60 and [a for a in every if a in text] == []
    assert 'pub_passes": 9' not in prose("lab_defence")


def test_each_student_has_an_exam_that_follows_from_the_key():
    ann, again = (forms.draw_exam(b"k" * 32, "ann") for _ in range(2))
    bob, other = forms.draw_exam(b"k" * 32, "bob"), forms.draw_exam(b"l" * 32, "ann")
    assert ann == again and ann != bob and ann != other
    assert len(ann) == 10 and all(math.isfinite(answer) for _, answer in ann)
    key = {"secret": (b"k" * 32).hex(), "students": {"ann": {}, "bob": {}}}
    pages = forms.write_edition_pages(key)
    assert {"exam-ann", "exam-bob", "answers", "notes", "solutions"} < set(pages)
    assert all(f"{answer:.4g}" in pages["exam solutions"] for _, answer in ann)
    assert "{" not in pages["exam-ann"] and "solutions" not in pages["exam-ann"]


@pytest.mark.parametrize(
    ("question", "numbers", "by_hand"),
    [
        ("coin", {"p": 0.75}, math.log(3)),
        ("laplace", {"epsilon": 0.5, "t": 4}, math.exp(-2)),
        ("shame", {"n": 5000, "delta": 0.002}, 10),
        ("empty", {"n": 2, "q": 0.1}, 0.81),
        ("labels", {"missed": 0, "labelled": 200}, 1 - 0.05 ** (1 / 200)),
        ("amplified", {"epsilon": 1, "gamma": 0.1}, math.log(1 + 0.1 * (math.e - 1))),
        ("exposure", {"rank": 2**4}, math.log2(10**6) - 4),
        ("luck", {"canaries": 1, "bits": 3}, 1 / 8),
        ("copies", {"copies": 2, "gamma": 0.1}, 0.19),
        ("guess", {"epsilon": 1, "candidates": 10}, math.e / (9 + math.e)),
    ],
)
def test_the_exam_is_solved_as_by_hand(question, numbers, by_hand):
    assert recipes.EXAM[question](**numbers) == pytest.approx(by_hand, rel=1e-6)
    assert set(teaching.load_yaml("teaching/exam.yml")[question]["numbers"]) == set(numbers)


def test_everything_shown_live_is_there():
    for shown in (x for hour in PLAN for x in hour["live"]):
        notebook = plain.read_notebook(ROOT / "notebooks" / f"{shown['notebook']}.ipynb")
        code = [c["id"] for c in notebook["cells"] if c["cell_type"] == "code"]
        assert code.index(shown["first"]) <= code.index(shown["last"])


# --------------------------------------------------------------------------- plain notebooks
PLACEHOLDER = re.compile(r"\{[a-z][a-z:-]*\}`|^[`:]{3,}\{|\]\(\)|^\([\w-]+\)=", re.MULTILINE)


@pytest.mark.parametrize("name", CHAPTERS)
def test_no_placeholder_is_left_outside_the_book(name):
    notebook = plain.read_notebook(ROOT / "book" / "chapters" / f"{name}.ipynb")
    made = plain.convert_chapter(name)
    text = "\n".join("".join(c["source"]) for c in made["cells"] if c["cell_type"] == "markdown")
    assert PLACEHOLDER.findall(text) == []
    code = [c["source"] for c in made["cells"] if c["cell_type"] == "code"]
    ran = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    ran = [c for c in ran if "injected-parameters" not in c["metadata"].get("tags", [])]
    assert code == [c["source"] for c in ran]


def test_roles_boxes_and_solutions_become_words(monkeypatch):
    text = (
        "In {glue:text}`n` of {cite:p}`a,b`.\n\n````{prf:definition} Rank\n:label: def-rank\n"
        "The place.\n````\n\n```{solution} ex-one\n:class: dropdown\nFour.\n```\n"
    )
    cited = {"a": ("Ann", "2020"), "b": ("Bo et al.", "2021")}
    monkeypatch.setattr(plain, "list_citations", lambda: cited)
    made = plain.convert_prose(text, {"n": "not the number"}, {"n": "7"})
    assert "In 7 of (Ann, 2020; Bo et al., 2021)." in made
    assert "> **Definition: Rank**" in made and "<details><summary>Solution</summary>" in made
    assert PLACEHOLDER.findall(made) == []


def test_a_number_that_no_run_stored_is_refused():
    with pytest.raises(KeyError, match="lost"):
        plain.convert_prose("{glue:text}`lost`", {"lost": "A title"}, {})


def test_a_notebook_that_was_changed_is_kept(tmp_path):
    assert plain.refresh_folder(tmp_path) == []
    mine = tmp_path / "canary.ipynb"
    mine.write_text(mine.read_text() + " ")
    assert plain.refresh_folder(tmp_path) == ["canary"] and mine.read_text().endswith(" ")
    (tmp_path / "canary.ipynb").unlink()
    assert plain.refresh_folder(tmp_path) == [] and mine.is_file()


# --------------------------------------------------------------------------- slides, pages, print
REMOTE = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(?!data:)[^"'>#]""")


def without_scripts(page):
    """A page without what its inline scripts say, where addresses and braces stand as text."""
    return re.sub(r"(?s)<script>.*?</script>", "", page)


def test_slides_stand_alone_and_each_hour_has_a_deck(tmp_path):
    paths = sorted(forms.write_slides(tmp_path).parent.glob("hour-*.html"))
    assert len(paths) == 10
    for path in paths:
        page = path.read_text()
        assert REMOTE.findall(without_scripts(page)) == [], path.name
        count = page.count("<section")
        assert 4 <= count <= forms.MOST and PLACEHOLDER.findall(without_scripts(page)) == []
    assert "Randomised response" in paths[1].read_text()


def test_one_notebook_is_a_page_that_stands_alone():
    page = forms.render_notebook(plain.convert_chapter("amplification"))
    assert REMOTE.findall(without_scripts(page)) == []
    assert "<math" in page and "<h1>Amplification by redaction</h1>" in page


def test_the_printed_book_has_every_page_and_no_placeholder():
    page = forms.render_book()
    for _, names in forms.list_contents():
        assert all(f'id="{name.rsplit("/", 1)[-1]}"' in page for name in names)
    assert PLACEHOLDER.findall(without_scripts(page)) == []
    assert "<details>" not in page  # on paper nothing unfolds


def test_an_exercise_stands_on_its_slide_and_a_goal_to_derive_is_derived():
    for number, hour in enumerate(PLAN, 1):
        deck = forms.render_deck(number, hour)
        for label in hour["class"]:
            title, text = forms.collect_exercises()[label]
            first = forms.render_markdown(text).split("</p>")[0]
            assert len(text) > 40 and title and first in deck, label
        derived = any(goal.startswith("derive ") for goal in hour["objectives"])
        proof = hour.get("derivation", {"steps": []})
        assert len(proof["steps"]) == (4 if derived else 0)
        heads = [deck.index(f"<h2>{title}</h2>") for title, _ in proof["steps"]]
        heads += [deck.index(f"<h2>{proof['before']}")] if derived else []
        assert heads == sorted(heads)  # a formula is derived before it is stated


def test_a_tall_figure_is_projected_row_by_row():
    """Letters of 11 pixels on a slide of 720: three panels stood below each other."""
    pages = importlib.import_module("pages")
    decks = {number: forms.render_deck(number, hour) for number, hour in enumerate(PLAN, 1)}
    for number, deck in decks.items():
        for drawing in re.findall(r'<svg role="img".*?</svg>', deck, re.DOTALL):
            rows = {panel["top"] for panel in pages.PANEL.finditer(drawing)}
            _, _, width, height = map(float, pages.BOX.search(drawing)[1].split())
            assert len(rows) < 2 or height < 0.8 * width, number
    assert decks[5].count("miss rate γ of the redaction policy</text>") == 8  # below each panel


# --------------------------------------------------------------------------- launch buttons
@pytest.mark.parametrize(("address", "shown"), [("", False), ("https://example.org/a/b", True)])
def test_launch_buttons_follow_the_one_address(address, shown):
    edition = importlib.import_module("edition")
    config = type("Config", (), {"html_theme_options": {"repository_url": address}})
    edition.add_buttons(None, config)
    options = config.html_theme_options
    assert ("launch_buttons" in options) == options.get("use_edit_page_button", False) == shown


def test_colours_of_the_dark_page_are_those_of_the_figures_and_can_be_read():
    pages = importlib.import_module("pages")
    assert set(pages.NEUTRAL) == {theme.INK, theme.MUTED, theme.FAINT, theme.CARD}
    looks = [look.color for look in theme.METHOD_STYLE.values()]
    assert min(contrast(pages.darken(color), pages.GROUND) for color in looks) >= 4.5


def test_a_card_of_a_cross_table_says_which_row_and_column_it_is():
    pages = importlib.import_module("pages")
    values = pd.DataFrame([[0.1] * 3], index=[0.5], columns=["1", "2", "4"])
    table = tables.render_table(values.rename_axis(index="γ", columns="ε′"))
    soup = bs4.BeautifulSoup(table.to_html(), "html.parser")
    pages.arrange_tables(soup)
    row = soup.select_one("tbody tr")
    labels = [cell.get("data-label") for cell in row.find_all(["th", "td"])]
    assert labels == ["γ", "ε′ = 1", "ε′ = 2", "ε′ = 4"]


def test_a_card_names_the_group_of_a_column_and_sentences_and_numbers_are_told_apart():
    pages = importlib.import_module("pages")
    groups = pd.MultiIndex.from_product([["mean", "least"], ["loss", "bits"]])
    values = pd.DataFrame(
        [["1.5 ± 0.1", "a sentence that is long enough", "2", "–"]], ["a"], groups
    )
    soup = bs4.BeautifulSoup(values.to_html(), "html.parser")
    pages.arrange_tables(soup)
    cells = soup.select("tbody td")
    assert [c["data-label"] for c in cells] == [
        "mean, loss", "mean, bits", "least, loss", "least, bits"
    ]  # fmt: skip
    assert [c.get("class") for c in cells] == [["number"], ["words"], ["number"], ["number"]]


def test_a_name_in_code_is_parted_between_its_words():
    pages = importlib.import_module("pages")
    soup = bs4.BeautifulSoup('<span class="pre">a.long_name="b"</span>', "html.parser")
    pages.join_numbers_and_signs(soup)
    assert [str(part) for part in soup.span] == ["a.", "<wbr/>", "long_", "<wbr/>", 'name="b"']


def test_a_formula_and_the_stop_behind_it_stay_on_one_line():
    pages = importlib.import_module("pages")
    soup = bs4.BeautifulSoup('<p>at <span class="math">x</span>. Then 5 %</p>', "html.parser")
    pages.join_numbers_and_signs(soup)
    assert (
        soup.select_one(".unparted").get_text() == "x." and soup.p.get_text() == "at x. Then 5\xa0%"
    )
