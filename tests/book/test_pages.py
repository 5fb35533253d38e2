"""The published edition: built as from a fresh checkout, without a warning, and then opened from
the disk in a browser: no serious finding of axe-core in either mode, no error in the console,
sliders that the keyboard works, nothing too heavy.

What needs a browser is skipped where no chromium is installed. axe-core (MPL 2.0) comes from the
package axe-core-python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

axe = pytest.importorskip("axe_core_python", reason="the package axe_core_python is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
ROOT = Path(__file__).resolve().parents[2]
HEAVY = 1_500_000
"""Bytes of the largest page, with the pictures that it shows."""
THEIRS = ("search", "genindex", "prf-prf")
"""Pages that the theme and its extensions write by themselves."""
REMOTE = re.compile(
    r"""<script[^>]+src=["']?(?:https?:)?//[^"'>]+|<link[^>]+href=["']?(?:https?:)?//[^"'>]+\.css"""
    r"""|(?:src|href)=["'](?:https?:)?//[^"']+\.(?:js|css)(?:\?[^"']*)?["']"""
)
CHECK = """(async rules => {
  await window.MathJax?.startup?.promise;
  const still = document.head.appendChild(document.createElement("style"));
  still.textContent = "* { animation: none !important; transition: none !important }";
  for (const hidden of document.querySelectorAll("main details")) hidden.open = true;
  for (const e of document.querySelectorAll(".toggle-hidden")) e.classList.remove("toggle-hidden");
  await new Promise(done => setTimeout(done, 100));
  const move = input => {
    const figure = input.closest("figure"), seen = figure.querySelector("output").textContent;
    input.value = input.value === input.max ? input.min : +input.value + +input.step;
    input.dispatchEvent(new Event("input", {bubbles: true}));
    return input.tabIndex >= 0 && figure.querySelector("output").textContent !== seen
      && !!figure.querySelector("[aria-live]").textContent;
  };
  const ranges = [...document.querySelectorAll("figure.live input[type=range]")];
  const stuck = ranges.filter(i => !move(i));
  const looks = new Set();  // tags, classes and styles from main down: what a colour comes from
  const look = e => e.tagName === "MAIN" ? "" : [
    look(e.parentElement), e.tagName, e.getAttribute("class"), e.getAttribute("style"),
    e.getAttribute("fill"), e.tagName === "TR" && [...e.parentElement.children].indexOf(e) & 1,
  ].join();
  for (const e of document.querySelectorAll("main *")) {
    const words = [...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.data.trim());
    if (!words || !e.checkVisibility()) continue;
    const its = look(e);
    if (!looks.has(its)) e.setAttribute("data-first-look", "");
    looks.add(its);
  }
  axe.configure({rules: [{id: "color-contrast", selector: "[data-first-look]"}]});
  const ran = await axe.run(document.querySelector("main"), {
    runOnly: rules, resultTypes: ["violations"],
  });
  const worst = ran.violations.filter(v => ["serious", "critical"].includes(v.impact));
  return {
    mode: document.documentElement.dataset.theme, stuck: stuck.length,
    sideways: document.documentElement.scrollWidth > innerWidth,
    serious: worst.map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160))}`),
  };
})(%s)"""
RULES = {
    "light": ["wcag2a", "wcag2aa"],
    "dark": ["color-contrast", "link-in-text-block"],  # what else is there does not change
}


class Browser:
    """One chromium without a window, told what to do through a pipe (its DevTools protocol)."""

    def __init__(self, profile: Path) -> None:
        (theirs_in, self.out), (self.into, theirs_out) = os.pipe(), os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe"
        given = [*flags.split(), "--disable-background-networking", f"--user-data-dir={profile}"]
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'  # the two that it listens at
        self.process = subprocess.Popen(
            ["bash", "-c", script, str(CHROMIUM), *given],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.said, self.events, self.count = b"", [], 0
        target = self.call("Target.createTarget", url="about:blank", session=False)["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True, session=False)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def heard(self) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self.said:
            piece = os.read(self.into, 1 << 16)
            assert piece, "chromium ended"
            self.said += piece
        message, self.said = self.said.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, *, session: bool = True, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result. Events on the way are kept."""
        self.count += 1
        request = {"id": self.count, "method": method, "params": parameters}
        request |= {"sessionId": self.session} if session else {}
        os.write(self.out, json.dumps(request).encode() + b"\0")
        while (message := self.heard()).get("id") != self.count:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def open(self, page: Path) -> None:
        """Open a file; returns when it and its scripts are loaded."""
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self.heard())

    def evaluate(self, script: str) -> Any:
        """The value of an expression or of what it promises."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True,
                         returnByValue=True)  # fmt: skip
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def errors(self) -> list[str]:
        """What the page has written to its console as an error since it was opened."""
        found = []
        for event in self.events:
            what = event.get("params", {})
            entry = what.get("entry", {})
            if (
                event.get("method") == "Runtime.exceptionThrown"
                or entry.get("level") == "error"
                or (event.get("method") == "Runtime.consoleAPICalled" and what["type"] == "error")
            ):
                found.append(json.dumps(entry or what)[:300])
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """What ``jupyter-book build book/`` makes of a fresh checkout."""
    work = tmp_path_factory.mktemp("published")
    program = Path(sys.executable).parent / "jupyter-book"
    command = [program, "build", "--quiet", "-W", "--keep-going", "--path-output", work]
    run = subprocess.run([*command, ROOT / "book"], cwd=ROOT, capture_output=True, text=True)
    return run, work / "_build" / "html"


@pytest.fixture(scope="module")
def book(built) -> Path:
    return built[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def pages(book: Path) -> list[Path]:
    every = sorted([*book.glob("*.html"), *book.glob("chapters/*.html")])
    return [page for page in every if page.stem not in THEIRS]


def remote_files(html: Path) -> list[str]:
    """Every script or style sheet that a page would fetch from another host."""
    found = (
        (page, REMOTE.findall(page.read_text(encoding="utf-8"))) for page in html.rglob("*.html")
    )
    return [f"{page.relative_to(html)}: {address}" for page, hits in found for address in hits]


@pytest.mark.parametrize(
    ("page", "remote"),
    [
        ('<script src="https://cdn.example.org/a.js"></script>', True),
        ("<script async src='//cdn.example.org/a'></script>", True),
        ('<link rel="stylesheet" href="https://cdn.example.org/a.css?v=1">', True),
        ('<a href="https://example.org/paper.html">a link to read</a>', False),
        ('<script src="../_static/scripts/theme.js"></script>', False),
    ],
)
def test_gate_finds_remote_scripts_and_styles(tmp_path, page, remote):
    (tmp_path / "index.html").write_text(page)
    assert bool(remote_files(tmp_path)) == remote


def test_published_edition_builds_without_warnings_and_network(built):
    run, html = built
    assert run.returncode == 0, run.stderr[-2000:]
    assert remote_files(html) == []
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert (html / "chapters" / f"{notebook.stem}.html").is_file()


def test_pages_are_light_enough(book):
    heavy = {}
    for page in pages(book):
        text = page.read_text(encoding="utf-8")
        shown = {
            (page.parent / src).resolve() for src in re.findall(r'<img[^>]+src="([^":]+)"', text)
        }
        size = page.stat().st_size + sum(p.stat().st_size for p in shown if p.is_file())
        heavy |= {page.name: size} if size > HEAVY else {}
    assert heavy == {}


def test_no_option_has_lost_a_dash(book):
    """Outside code two dashes become a long one: a page said "train –method NAME –help"."""
    option = re.compile(r"(?<=[\s(\[])\N{EN DASH}[a-z][a-z-]+")
    found = {page.name: option.findall(page.read_text(encoding="utf-8")) for page in pages(book)}
    assert {name: options for name, options in found.items() if options} == {}


def test_every_figure_has_words_and_every_caption_a_number(book):
    bare = []
    for page in pages(book):
        text = page.read_text(encoding="utf-8")
        for image in re.findall(r"<img\b[^>]*>", text):
            words = re.search(r'alt="([^"]*)"', image)
            if words is None or re.search(r"\.(png|svg)$", words[1]):
                bare.append(f"{page.name}: {image[:90]}")
        bare += [f"{page.name}: svg" for _ in re.findall(r'<svg role="img" aria-label=""', text)]
        bare += [f"{page.name}: tag" for _ in re.findall(r"<MASK>", text)]
    assert bare == []


@pytest.fixture(scope="module")
def judge(browser) -> Browser:
    """The browser with axe-core in every page that it opens."""
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    return browser


def test_one_pale_word_among_its_like_is_seen(book, judge):
    judge.open(book / "chapters" / "language_models.html")
    for like in ("pre span", "td", "section > p"):
        script = """(like => {
          const every = [...document.querySelectorAll("main " + like)].filter(
            e => e.textContent.trim() && !e.children.length
              && e.checkVisibility({opacityProperty: true, visibilityProperty: true}));
          every[every.length >> 1].style.color = "#bbb";
        })(%s)"""
        judge.evaluate(script % json.dumps(like))
    found = judge.evaluate(CHECK % json.dumps(RULES["light"]))["serious"]
    assert [rule.split(":")[0] for rule in found] == ["color-contrast"]
    assert all(f"<{tag}" in found[0] for tag in ("span", "td", "p"))


def test_pages_open_from_the_disk_without_a_serious_finding(book, judge):
    """Every page in light, by every rule; in dark, by the rules about colours, every third page and
    all that have a live figure. Contrast is judged once for each look: a page of code has four
    thousand pieces of text and some three hundred looks."""
    every, faults = pages(book), {}
    live = [page for page in every if 'class="live"' in page.read_text(encoding="utf-8")]
    opened = {"light": every, "dark": sorted({*every[::3], *live})}
    for mode, rules in RULES.items():
        first = f'localStorage.mode = localStorage.theme = "{mode}"'
        judge.call("Page.addScriptToEvaluateOnNewDocument", source=first)
        for page in opened[mode]:
            judge.open(page)
            found = judge.evaluate(CHECK % json.dumps(rules))
            assert found["mode"] == mode
            wrong = [*found["serious"], *judge.errors()]
            wrong += ["a slider does not move"] * found["stuck"]
            wrong += ["wider than a telephone"] * found["sideways"]
            faults |= {f"{page.name} in {mode}": wrong} if wrong else {}
    assert faults == {}


def test_no_code_no_formula_and_no_table_is_cut_on_a_desk(book, browser):
    """Two thirds of a hundred blocks of code ended at the edge, the formula of the theorem, and
    the last columns of tables."""
    size = {"width": 1300, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    script = """(async () => {
      await window.MathJax?.startup?.promise;
      await new Promise(done => setTimeout(done, 100));
      return [...document.querySelectorAll(
        "main pre, main div.math, main .pst-scrollable-table-container, main td")]
        .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 2)
        .map(e => e.textContent.trim().slice(0, 80));
    })()"""
    cut = {}
    for page in pages(book):
        browser.open(page)
        found = browser.evaluate(script)
        cut |= {page.name: found} if found else {}
    browser.call("Emulation.setDeviceMetricsOverride", **(size | {"width": 390}))
    assert cut == {}


def test_no_word_of_a_figure_is_cut_at_its_edge(book, browser):
    """Nine labels of two figures began left of the drawing: a label had grown after it was laid
    out."""
    script = """[...document.querySelectorAll("main svg[role=img]")].flatMap(drawn => {
      const edge = drawn.getBoundingClientRect();
      return [...drawn.querySelectorAll("text")].filter(text => {
        const r = text.getBoundingClientRect();
        return r.width && (r.left < edge.left - 3 || r.right > edge.right + 3
          || r.top < edge.top - 3 || r.bottom > edge.bottom + 3);
      }).map(text => text.textContent);
    }).concat([...document.querySelectorAll("main .story")]
      .filter(e => e.scrollWidth > e.clientWidth).map(() => "the picture of the story"))"""
    opened = "for (const e of document.querySelectorAll('main details')) e.open = true"
    cut = {}
    for page in pages(book):
        browser.open(page)
        browser.evaluate(opened)
        found = browser.evaluate(script)
        cut |= {page.name: found} if found else {}
    assert cut == {}


def test_a_chapter_opens_with_one_bar_of_code(book, browser):
    """Parameters, settings and imports were three; the first shows the others."""
    seen = """[...document.querySelectorAll(".cell.tag_hide-input")].slice(0, 3)
      .map(e => e.checkVisibility())"""
    browser.open(book / "chapters" / "canary.html")
    assert browser.evaluate(seen) == [True, False, False]
    browser.evaluate('document.querySelector(".tag_parameters details").open = true')
    assert browser.evaluate(seen) == [True, True, True]


def press(browser, *keys):
    """Press these keys one after the other."""
    codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39}
    for key in keys:
        named = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        text = {"text": "\r"} if key == "Enter" else {} if key in codes else {"text": key}
        browser.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        browser.call("Input.dispatchKeyEvent", type="keyUp", **named)


def starting_before(browser, page, place):
    """Open the page with the keyboard just before this place; what reads its text now."""
    browser.open(page)
    script = """(place => { const here = document.createElement("a"); here.href = "#";
      document.querySelector(place).before(here); here.focus(); })(%s)"""
    browser.evaluate(script % json.dumps(place))
    return lambda inner: browser.evaluate(
        f"document.querySelector({json.dumps(place)}).querySelector('{inner}').textContent"
    )


def test_toys_and_exercises_are_worked_by_the_keyboard_alone(book, browser):
    chapters = book / "chapters"
    told = starting_before(browser, chapters / "amplification.html", "#toy-bells")
    assert "misses 10 % leaves" in told(".toy-said")
    press(browser, "Tab", *["ArrowRight"] * 40)
    assert "misses 50 % leaves" in told(".toy-said")
    told = starting_before(browser, chapters / "membership.html", "#toy-guess")
    assert "right about 8 of the ten" in told(".toy-said")
    press(browser, *["Tab", "Enter", "Tab"] * 10, "Tab", "Enter")
    assert "of 10 that you guessed" in told(".toy-said")
    told = starting_before(browser, chapters / "leakage_report.html", "#toy-tab")
    press(browser, "Tab", "Tab")
    assert "That is somebody's" in told(".toy-said")
    asked = '[data-id="ex-canary-mean"]'
    told = starting_before(browser, chapters / "canary.html", asked)
    press(browser, "Tab", "Enter")
    assert told("output") == ""  # without an answer nothing is said
    press(browser, *"2.0", "Enter")
    assert told("output").startswith("✗ Not yet")
    told = starting_before(browser, chapters / "canary.html", asked)
    browser.evaluate(f"document.querySelector('.answer{asked} input').value = ''")
    press(browser, "Tab", *"1.44", "Enter")
    assert told("output") == "✓ Right."


TOYS = {
    "amplification": ("#toy-bells", "misses 10 % leaves", "input[name=gamma]", "misses 100 %"),
    "membership": ("#toy-guess", "right about 8 of the ten", ".toy-reveal", "of 10"),
    "leakage_report": ("#toy-tab", "which one person alone has said", ".toy-next", "somebody's"),
}
"""Of each toy: what its first frame says, what a finger moves or presses, and what it says then."""


@pytest.mark.parametrize("chapter", TOYS)
def test_a_toy_speaks_first_fits_a_telephone_and_answers(book, browser, chapter):
    place, first, touched, then = TOYS[chapter]
    told = starting_before(browser, book / "chapters" / f"{chapter}.html", place)
    assert first in told(".toy-said")
    small = browser.evaluate(f"""(place => [...place.querySelectorAll("button, input")]
      .filter(e => e.checkVisibility())
      .map(e => e.getBoundingClientRect())
      .filter(r => r.height < 24 || r.left < 0 || r.right > innerWidth).length
    )(document.querySelector("{place}"))""")
    assert small == 0, "a finger needs 24 pixels, and the whole of it is on the screen"
    assert browser.evaluate(f"""(e => e.scrollWidth <= e.clientWidth)
      (document.querySelector("{place}"))""")
    browser.evaluate(f"""(e => {{ e.value = e.max; e.click();
      e.dispatchEvent(new Event("input", {{bubbles: true}})); }})
      (document.querySelector("{place} {touched}"))""")
    assert then in told(".toy-said")
