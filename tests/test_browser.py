"""The finished pages in a browser, opened from the disk: no serious finding of axe-core in either
mode, no error in the console, sliders that the keyboard works, nothing too heavy.

Skipped where no chromium is installed. axe-core (MPL 2.0) comes from the package axe-core-python.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

axe = pytest.importorskip("axe_core_python")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
ROOT = Path(__file__).resolve().parent.parent
HEAVY = 1_500_000
"""Bytes of the largest page, with the pictures that it shows."""
THEIRS = ("search", "genindex", "prf-prf")
"""Pages that the theme and its extensions write by themselves."""
CHECK = """<pre id="found">nothing ran</pre><script>
addEventListener("load", () => setTimeout(async () => {
  const move = input => {
    const figure = input.closest("figure"), seen = figure.querySelector("output").textContent;
    input.value = input.value === input.max ? input.min : +input.value + +input.step;
    input.dispatchEvent(new Event("input", {bubbles: true}));
    return input.tabIndex >= 0 && figure.querySelector("output").textContent !== seen
      && !!figure.querySelector("[aria-live]").textContent;
  };
  const ranges = [...document.querySelectorAll("figure.live input[type=range]")];
  const stuck = ranges.filter(i => !move(i));
  const ran = await axe.run(document.querySelector("main"), {runOnly: ["wcag2a", "wcag2aa"]});
  const worst = ran.violations.filter(v => ["serious", "critical"].includes(v.impact));
  document.getElementById("found").textContent = JSON.stringify({
    mode: document.documentElement.dataset.theme, stuck: stuck.length,
    sideways: document.documentElement.scrollWidth > innerWidth,
    serious: worst.map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160))}`),
  });
}, 300));
</script>"""


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    """The published edition without the library's own pages, which take minutes."""
    import yaml

    work = tmp_path_factory.mktemp("browser")
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    config["sphinx"]["extra_extensions"].remove("autoapi.extension")
    names = config["sphinx"]["local_extensions"]
    config["sphinx"]["local_extensions"] = dict.fromkeys(names, str(ROOT / "book" / "_ext"))
    (work / "config.yml").write_text(yaml.safe_dump(config))
    contents = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
    for part in contents["parts"]:
        part["chapters"] = [c for c in part["chapters"] if "autoapi" not in c["file"]]
    (work / "toc.yml").write_text(yaml.safe_dump(contents))
    program = Path(sys.executable).parent / "jupyter-book"
    command = [program, "build", "--quiet", ROOT / "book", "--path-output", work]
    command += ["--config", work / "config.yml", "--toc", work / "toc.yml"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return work / "_build" / "html"


def pages(book: Path) -> list[Path]:
    every = sorted([*book.glob("*.html"), *book.glob("chapters/*.html")])
    return [page for page in every if page.stem not in THEIRS]


def opened(page: Path, mode: str) -> tuple[dict, list[str]]:
    """What the check found on one page, and the errors of its console."""
    script = Path(axe.__file__).parent / "axe.min.js"
    first = f'<script>localStorage.mode=localStorage.theme="{mode}"</script>'
    text = page.read_text(encoding="utf-8").replace("<head>", "<head>" + first, 1)
    copy = page.with_name(f"{page.stem}.{mode}.tried")  # beside it, so that its links hold
    copy = copy.with_suffix(".htm")
    copy.write_text(
        text.replace("</body>", f'<script src="{script.as_uri()}"></script>{CHECK}</body>')
    )
    profile = copy.with_suffix(".profile")
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    command = [CHROMIUM, *flags.split(), "--enable-logging=stderr", "--virtual-time-budget=20000",
               "--window-size=390,900", f"--user-data-dir={profile}", "--dump-dom",
               copy.as_uri()]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    shutil.rmtree(profile, ignore_errors=True)
    copy.unlink()
    found = re.search(r'<pre id="found"[^>]*>(.*?)</pre>', run.stdout, re.DOTALL)
    errors = [
        line for line in run.stderr.splitlines() if re.search(r"CONSOLE.*(Error|error|CORS)", line)
    ]
    if found is None or not found[1].startswith("{"):
        return {
            "mode": "",
            "stuck": 0,
            "sideways": False,
            "serious": ["the check did not run"],
        }, errors
    return json.loads(html.unescape(found[1])), errors


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


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_pages_open_from_the_disk_without_a_serious_finding(book, mode):
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda page: (page.name, *opened(page, mode)), pages(book)))
    faults = {
        name: [*found["serious"], *errors]
        + ["a slider does not move"] * found["stuck"]
        + ["wider than a telephone"] * found["sideways"]
        for name, found, errors in results
        if found["serious"] or errors or found["stuck"] or found["sideways"]
    }
    assert faults == {}
    assert {found["mode"] for _, found, _ in results} == {mode}
