"""The toys of the chapters: small, worked by keys, and what they show is what the library says."""

import importlib
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crtcourse import recipes
from crtcourse.exercises import check

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_ext"))
pages = importlib.import_module("pages")

ASSETS = Path(__file__).resolve().parents[2] / "book" / "_assets"
TOYS = {"toy-bells": "amplification", "toy-guess": "membership", "toy-tab": "leakage_report"}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node")


def held(name):
    text = (ASSETS / f"{name}.js").read_text(encoding="utf-8")
    return json.loads(text[text.index("{") :].rstrip(";\n"))


def in_the_page(name, asked):
    script = (ASSETS / f"{name}.js").read_text(encoding="utf-8")
    run = subprocess.run(
        ["node"], input=f"{script}\nconsole.log(JSON.stringify({asked}));", text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_is_small_needs_no_network_and_says_something_before_a_click(name):
    files = [*ASSETS.glob(f"{name}*"), ASSETS / "toy.css"]
    assert sum(path.stat().st_size for path in files) < 60_000
    page = (ASSETS / f"{name}.html").read_text(encoding="utf-8")
    assert re.findall(r"https?:", page) == [] and "aria-label" in page
    said = re.search(r'class="toy-said" aria-live="polite">([^<]+)<', page)
    assert len(said[1]) > 40
    notebook = (ASSETS.parents[1] / "notebooks" / f"{TOYS[name]}.ipynb").read_text("utf-8")
    assert f":file: ../_assets/{name}.html" in notebook


@needs_node
@pytest.mark.parametrize(("gamma", "sigma"), [(0.1, 0.5), (1.0, 1.0), (0.0, 2.0), (0.37, 3.1)])
def test_the_bells_say_how_often_the_best_attacker_is_right(gamma, sigma):
    apart = math.erf(1 / (2 * math.sqrt(2) * sigma))  # total variation of the two bells
    assert in_the_page("toy-bells", f"bells.right({gamma}, {sigma})") == pytest.approx(
        50 + 50 * gamma * apart, abs=0.02
    )


@needs_node
def test_the_scores_are_judged_as_the_chapter_judges_them():
    rows = held("toy-guess")["rows"]
    assert sum(row["read"] for row in rows) == len(rows) / 2
    likeliest = sorted(rows, key=lambda row: -row["score"])[: len(rows) // 2]
    calls = in_the_page("toy-guess-page", f"guessing.calls({json.dumps(rows)})")
    assert calls == [row in likeliest for row in rows]


@needs_node
def test_a_page_judges_an_answer_as_the_notebook_does():
    """Of each exercise that checks itself: its likely mistakes, junk, and the right number."""
    given = []
    for name, asked in pages.load_checks().items():
        mistakes = list(asked["wrong"])
        right = "a, b"
        if asked["kind"] == "number":
            right = repr(recipes.RECIPES[name]())
            given.append((name, asked, right, right))
        given += [(name, asked, right, said) for said in (*mistakes, "-123.456")]
    cases = json.dumps([[asked, right, said] for _, asked, right, said in given])
    judged = in_the_page("answers", f"{cases}.map(([a, r, s]) => answering.judge(a, r, s, 0))")
    for (name, asked, _, said), (passed, told) in zip(given, judged, strict=True):
        answer = float(said) if asked["kind"] == "number" else said
        ours = check(name, answer)
        assert passed == ours.passed, (name, said)
        if said in asked["wrong"]:
            assert told == f"Not yet: {ours.message}"
    assert len(given) > 60 and any(passed for passed, _ in judged)


def test_what_the_model_goes_on_with_gives_somebody_away():
    rows = held("toy-tab")["rows"]
    assert rows[0]["people"] == 1 and all(row["words"] for row in rows)


@needs_node
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("toy-guess", "right about 8 of the ten"),
        ("toy-tab", "which one person alone has said"),
    ],
)
def test_the_first_frame_of_a_toy_says_what_it_shows(name, says):
    """The page is run as a browser runs it, up to the first click, on elements that keep text."""
    page = """
      const made = {}, element = () => ({textContent: "", innerHTML: "", addEventListener() {}});
      const place = {querySelector: name => made[name] ??= element()};
      globalThis.document = {getElementById: () => place};
      globalThis.addEventListener = (_, begin) => begin();
    """
    scripts = [(ASSETS / f"{name}{part}.js").read_text("utf-8") for part in ("", "-page")]
    run = subprocess.run(
        ["node"], input="\n".join([page, *scripts, 'console.log(made[".toy-said"].textContent);']),
        text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert says in run.stdout
