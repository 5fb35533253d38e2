"""The book in other forms than its web pages: ``python book/forms.py FORM``.

``page NAME [-p NAME VALUE ...]`` makes one notebook a page, ``slides`` a deck for each hour of the
plan, ``pdf`` the whole published book, and ``instructor [class.key]`` what students do not see:
notes, answers, the labs' solutions and, for the students of a class, an exam each.

Every form is HTML that stands alone: prose by markdown-it, formulas as MathML, figures as data,
code coloured. Nothing is fetched, so a page can be mailed; Chromium prints the PDF.
"""

import functools
import html
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from latex2mathml import converter
from markdown_it import MarkdownIt
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import plain
import teaching
from _ext import pages

BOOK = Path(__file__).resolve().parent
BUILT = BOOK.parent / "_build"

FORMATTER = HtmlFormatter(cssclass="code")
STYLE = """
:root{--ink:#1d2733;--faint:#5b6673;--card:#f5f7f9;--line:#c9d1d9;--accent:#0b5c94}
body{margin:0;color:var(--ink);background:#fff;font:17px/1.55 system-ui,sans-serif}
main{max-width:46rem;margin:2rem auto;padding:0 1rem}
h1,h2,h3{line-height:1.2}h1{font-size:1.8rem}a{color:var(--accent)}
img,svg{max-width:100%;height:auto}pre{overflow-x:auto;font-size:.82rem;line-height:1.4}
.code,.out{background:var(--card);padding:.6rem .8rem;border-radius:4px}.out pre{margin:0}
blockquote{margin:1rem 0;padding:.1rem 1rem;border-left:4px solid var(--accent);
background:var(--card)}
table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
details{margin:.8rem 0;padding:.3rem .8rem;border:1px solid var(--line);border-radius:4px}
@media print{table{display:table;font-size:.7rem}pre{white-space:pre-wrap}}
"""


def formula(text: str, options: dict[str, Any]) -> str:
    """A formula as MathML; as its source where it cannot be converted."""
    text = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", text)
    text = re.sub(r"\\(?:operatorname|mathrm)\{([^}]*)\}", r"\\mathrm{\1}", text)
    text = re.sub(r"(\\(?:ln|log)(?:_\w)?)(?![a-z({_])(?=\s*\\?[a-zA-Z])", r"\1\\,", text)
    text = text.replace("'", "\N{PRIME}")  # raised, it is a speck without a font for formulas
    display = "block" if options.get("display_mode") else "inline"
    try:
        return converter.convert(text, display=display)
    except Exception:  # whatever the converter cannot read is shown as it was written
        return f"<code>{html.escape(text)}</code>"


@functools.cache
def parser() -> MarkdownIt:
    """Markdown with tables, definition lists and formulas."""
    made = MarkdownIt("commonmark", {"html": True}).enable("table").use(deflist_plugin)
    return made.use(dollarmath_plugin, renderer=formula, allow_space=True)


def markdown(text: str) -> str:
    """Plain markdown (see :mod:`plain`) as HTML."""
    return parser().render(text)


def output(out: dict[str, Any]) -> str:
    """One output: a figure, a table, a text."""
    data = {k: "".join(v) if isinstance(v, list) else v for k, v in out.get("data", {}).items()}
    if "image/svg+xml" in data:
        return data["image/svg+xml"]
    if "image/png" in data:
        alt = html.escape(str(out.get("metadata", {}).get("alt", "Figure of this section")))
        return f'<img alt="{alt}" src="data:image/png;base64,{data["image/png"].strip()}">'
    if "text/html" in data:
        return data["text/html"]
    if "text/markdown" in data:
        return markdown(data["text/markdown"])
    text = data.get("text/plain") or "".join(out.get("text", ""))
    return f'<div class="out"><pre>{html.escape(text)}</pre></div>' if text.strip() else ""


def code(source: str) -> str:
    """A coloured piece of Python."""
    return highlight(source, PythonLexer(), FORMATTER)


def cell(c: dict[str, Any]) -> str:
    """One cell: prose, or code with what it printed."""
    text = "".join(c["source"])
    if c["cell_type"] == "markdown":
        return markdown(text)
    tags = {*c["metadata"].get("tags", [])}
    shown = "".join(output(o) for o in c["outputs"] if o.get("name") != "stderr")
    if "remove-cell" in tags:
        return ""
    if "hide-input" in tags:
        return f"<details><summary>Code</summary>{code(text)}</details>{shown}"
    return code(text) + shown


def document(title: str, body: str, *, style: str = STYLE, script: str = "") -> str:
    """A whole page; its figures and sliders need nothing from outside."""
    css = style + FORMATTER.get_style_defs(".code")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        '</title><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{css}</style>{script}</head><body>{body}</body></html>"
    )


def listed(title: str, links: Mapping[str, str]) -> str:
    """A page of links to the files of a folder, with their names."""
    items = (f'<li><a href="{html.escape(x)}">{html.escape(y)}</a></li>' for x, y in links.items())
    return document(title, f"<main><h1>{title}</h1><ul>{''.join(items)}</ul></main>")


def page(notebook: dict[str, Any]) -> str:
    """A plain notebook as a page."""
    first = "".join(notebook["cells"][0]["source"])
    title = first.splitlines()[0].lstrip("# ")
    return document(title, f"<main>{''.join(map(cell, notebook['cells']))}</main>")


def write_page(name: str = "", *arguments: str) -> Path:
    """Write ``_build/page/NAME.html`` of the recorded chapter NAME, or of what papermill makes of
    it with the other arguments."""
    if not name:
        raise ValueError("NB: must name a notebook, as in make page NB=canary")
    out = BUILT / "page" / f"{name}.ipynb"
    plain.write(out.parent, [name])
    if arguments:
        command = [Path(sys.executable).parent / "papermill", BOOK.parent / "notebooks" / out.name]
        if failed := subprocess.run([*command, out, *arguments], cwd=BOOK.parent).returncode:
            sys.exit(failed)
    written = out.with_suffix(".html")
    written.write_text(page(plain.read(out)), "utf-8")
    out.unlink()
    return written


# --------------------------------------------------------------------------- slides
MOST = 32
"""Slides of a deck, at most; figures come before boxes where there are more. What becomes a slide:
the five questions on what came before, with their answers behind them; the objectives; of each
section its question, boxes, common mistakes, figures and demonstration; what a lab asks; the
exercises of the hour. Arrow keys, space, Page Up and Page Down, Home and End move, ``n`` shows the
notes, and printing gives a slide a page. Text is as large as its slide holds."""
QUOTED = re.compile(r"(?ms)^> \*\*(?P<head>[^\n]*)\*\*\n(?P<body>(?:^>[^\n]*\n?)*)")
FOLDED = re.compile(r"(?ms)^<details><summary>([^\n]*mistakes?)</summary>\n(.*?)^</details>")
QUESTION = re.compile(r"(?m)^\*\*Question\.\*\* (.*)$")
TABLE = re.compile(r"(?m)(?:^\|.*\n?)+")
HEADING = re.compile(r"(?m)^## (.*)$")
SKIP = ("What you will learn", "What you will do", "Before you start", "Exercise", "Proof")
DECK = """
body{background:#1d2733;overflow:hidden;font-size:max(22px,min(2.3vw,4.1vh))}
@media(max-width:600px){body{font-size:17px}}
section{display:none;position:fixed;inset:0;background:#fff;padding:3.2vh 6vw 6vh;overflow:auto}
section.on{display:flex;flex-direction:column}section>div{margin:auto 0;width:100%}
h2{margin:.1em 0 .4em;color:var(--accent);font-size:1.35em}.title>div{margin:0}
.math.block{font-size:1.15em}li,p{overflow-wrap:anywhere}
section.figure>div{flex:1;min-height:0;margin:0;display:flex;gap:3vw;align-items:center}
section.figure>div>:is(img,svg){flex:1 1 60%;min-width:0;height:100%;max-height:none}
section.figure:not(.tall)>div>div{display:none}
section.figure>div>div{flex:0 0 30%;font-size:.8em}section.figure h2{font-size:1.1em}
@media(max-width:600px){.math.block{overflow:auto hidden}section.figure>div{flex-direction:column}
section.figure>div>:is(img,svg){flex:0 1 auto;height:auto;max-height:55vh}}
section figure.live :not(svg,svg *){font-size:max(20px,1.9vw)!important}
section img,section svg{max-height:76vh;width:100%;display:block;margin:auto}
section pre{font-size:.62em}.title{padding-top:30vh}.title h2{font-size:2em}
footer{position:fixed;right:1.5vw;bottom:1.2vh;color:var(--faint);font-size:.6em;z-index:2}
aside{display:none}body.notes section.on aside{display:block;margin-top:1em;padding:.6em 1em;
background:#fff6dc;font-size:.8em}table{font-size:.74em}
@page{size:297mm 167mm;margin:0}
@media print{body{overflow:visible;background:#fff;font-size:17px}footer{display:none}
section{display:block;position:relative;inset:auto;height:167mm;box-sizing:border-box;
overflow:hidden;break-after:page;padding:8mm 14mm}
section :is(img,svg),section.figure>div>:is(img,svg){max-height:120mm}}
"""
SCRIPT = """<script>
addEventListener("DOMContentLoaded",()=>{const s=[...document.querySelectorAll("section")];
let k=Math.min(s.length-1,Math.max(0,(parseInt(location.hash.slice(1))||1)-1));
const fit=x=>{let f=1.3;do x.style.fontSize=(f-=.05)+"em";
while(f>.7&&(x.scrollHeight>x.clientHeight+1||x.scrollWidth>x.clientWidth+1))};
for(const x of s){const v=x.querySelector(":scope>div>svg")?.viewBox.baseVal;
if(v&&v.height>.8*v.width)x.classList.add("tall")}
const show=i=>{s[k].classList.remove("on");k=Math.min(s.length-1,Math.max(0,i));
s[k].classList.add("on");document.querySelector("footer").textContent=(k+1)+" / "+s.length;
history.replaceState(null,"","#"+(k+1));dispatchEvent(new Event("resize"))};
addEventListener("resize",()=>fit(s[k]));show(k);
addEventListener("keydown",e=>{if(e.target.tagName=="INPUT")return;
const to={ArrowRight:k+1,PageDown:k+1," ":k+1,ArrowLeft:k-1,PageUp:k-1,Home:0,End:s.length}[e.key];
if(to!==undefined){e.preventDefault();show(to)}
if(e.key=="n"){document.body.classList.toggle("notes");fit(s[k])}});
addEventListener("click",e=>{if(!e.target.closest("a,summary,input,button,figure"))show(k+1)})});
</script>"""


def slide(title: str, body: str, notes: str = "", kind: str = "") -> str:
    """One slide."""
    aside = f"<aside>{markdown(notes)}</aside>" if notes else ""
    head = parser().renderInline(html.escape(title, quote=False))
    return f'<section class="{kind}"><h2>{head}</h2><div>{body}</div>{aside}</section>'


def _boxes(text: str, section: str) -> list[str]:
    """The question and the boxes of a piece of prose."""
    out = [
        slide(section, markdown(f"**Question.** {question}")) for question in QUESTION.findall(text)
    ]
    if section == "What you hand in":  # of a lab: its tasks
        out += [slide(section, markdown(table)) for table in TABLE.findall(text)]
    for head, quoted in QUOTED.findall(text):
        if not head.startswith(SKIP):
            body = "\n".join(line.removeprefix(">").strip() for line in quoted.splitlines())
            out.append(slide(section if head in ("Warning", "Note") else head, markdown(body)))
    return out + [slide(head, markdown(body)) for head, body in FOLDED.findall(text)]


def of_chapter(name: str, sections: list[str] | None) -> list[tuple[int, str]]:
    """(importance, slide) of a chapter: 0 is kept first."""
    cells = plain.convert(name)["cells"]
    out: list[tuple[int, str]] = []
    section = ""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for k, piece in enumerate(HEADING.split("".join(cell["source"]))):
                if k % 2:
                    section = piece
                elif teaching.told(section, sections):
                    out += [(1, s) for s in _boxes(piece, section)]
        elif teaching.told(section, sections):
            out += _shown(cell, section)
    return out


def _shown(cell: dict[str, Any], section: str) -> list[tuple[int, str]]:
    """A figure as slides, a row of panels each, under what its caption calls it; one that is tall
    all the same beside its caption; of sliders the figure with its slider."""
    out = []
    caption = cell["metadata"].get("mystnb", {}).get("figure", {}).get("caption", "")
    name, said = re.match(r"(?s)(?:\*\*([^*]*)[.:]\*\*)?(.*)", caption).groups()
    for made in cell["outputs"]:
        data = made.get("data", {})
        if 'type="range"' in "".join(data.get("text/html", "")):
            out.append((0, slide(section, output(made))))
        elif {"image/png", "image/svg+xml"} & {*data}:
            words = plain.without_links(said)
            for drawing in _rows(output(made)):
                body = f"{drawing}<div>{markdown(words)}</div>"
                out.append((0, slide(name or section, body, words, kind="figure")))
    return out


def _rows(drawing: str) -> list[str]:
    """A tall drawing once for each row of its panels, its ids apart; another as it is."""
    box = pages.BOX.search(drawing)
    if not box or float(box[1].split()[3]) < 0.8 * float(box[1].split()[2]):
        return [drawing]
    rows = pages.rows_of_panels(drawing)
    return [re.sub(r'(id="|href="#|url\(#)', rf"\g<1>r{k}-", row) for k, row in enumerate(rows)]


def _raised(text: str) -> str:
    text = teaching.raised(html.escape(text))
    return re.sub(r"\{(su[bp])\}`([^`]*)`", r"<\1>\2</\1>", text)


def deck(number: int, hour: dict[str, Any]) -> str:
    """The deck of one hour."""
    notes = f"**Say:** {hour['say']}\n\n**Ask:** {hour['ask']}\n\n**Wait for:** {hour['wait']}"
    goals = "".join(f"<li>{_raised(x)}</li>" for x in hour["objectives"])
    first = [
        slide(hour["title"], f"<p>Hour {number}</p>", notes, "title on"),
        *(slide("What came before", f"<p>{_raised(question)}</p><details><summary>Answer"
                f"</summary><p>{_raised(answer)}</p></details>")
          for _, question, answer in teaching.quiz(number)),
        slide("After this hour you can", f"<ul>{goals}</ul>", notes),
    ]  # fmt: skip
    body = [x for name in hour["read"] for x in of_chapter(name, hour.get("sections"))]
    if proof := hour.get("derivation"):  # before the slide that states what it derives
        states = next(k for k, (_, s) in enumerate(body) if f"<h2>{proof['before']}" in s)
        body[states:states] = [(0, slide(title, markdown(text))) for title, text in proof["steps"]]
    last = _closing(hour)
    room = MOST - len(first) - len(last)
    while len(body) > room:  # the last box goes first, then the last figure
        worst = max(range(len(body)), key=lambda k: (body[k][0], k))
        del body[worst]
    inside = "".join([*first, *(s for _, s in body), *last, "<footer></footer>"])
    style = STYLE + DECK
    return document(f"Hour {number}: {hour['title']}", inside, style=style, script=SCRIPT)


@functools.cache
def exercises() -> dict[str, tuple[str, str]]:
    """The title and the text of each exercise, by its label."""
    out = {}
    for name in plain.chapters():
        cells = plain.read(BOOK / "chapters" / f"{name}.ipynb")["cells"]
        numbers = plain.glued(cells)
        for cell in (c for c in cells if c["cell_type"] == "markdown"):
            for match in plain.FENCE.finditer("".join(cell["source"])):
                options = dict(plain.OPTION.findall(match["body"]))
                if match["kind"] == "exercise":
                    body = plain.OPTION.sub("", match["body"]).strip()
                    told = plain.prose(body, plain.titles(), numbers)
                    out[options["label"]] = match["arg"].strip(), told
    return out


def _closing(hour: dict[str, Any]) -> list[str]:
    """What is shown live, the exercises, likely mistakes."""
    known = plain.titles()
    live = "".join(
        f"<li>{html.escape(x['show'])} ({known[x['notebook']]}, "
        f"<i>{html.escape(teaching.section_of(x))}</i>)</li>"
        for x in hour["live"]
    )
    out = [slide("Shown live", f"<ul>{live}</ul>")]
    for label in hour["class"]:
        title, text = exercises()[label]
        out.append(slide(f"In pairs: {title}", markdown(text)))
    rows = "".join(f"<li>{_raised(wrong)}</li>" for wrong, _ in hour["wrong"])
    do = "\n".join(f"- {wrong} {what}" for wrong, what in hour["wrong"])
    return [*out, slide("What is wrong here?", f"<ul>{rows}</ul>", do)]


def slides(folder: Path = BUILT / "slides") -> Path:
    """Write all decks and a page that links them."""
    folder.mkdir(parents=True, exist_ok=True)
    links = {}
    for number, hour in enumerate(teaching.data("teaching/plan.yml"), 1):
        name = f"hour-{number:02d}.html"
        (folder / name).write_text(deck(number, hour), "utf-8")
        links[name] = f"Hour {number}: {hour['title']}"
    (folder / "index.html").write_text(listed("Slides", links), "utf-8")
    return folder / "index.html"


# --------------------------------------------------------------------------- the printed book
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PRINT = """
@page{size:A4;margin:18mm 16mm 20mm}body{font-size:10.5pt}main{max-width:none;margin:0;padding:0}
h1{break-before:page}h2,h3{break-after:avoid}img,svg{max-height:210mm;break-inside:avoid}
table{display:table;width:100%;table-layout:auto;font-size:7.2pt;break-inside:auto}
th,td{padding:2px 4px;overflow-wrap:anywhere}tr{break-inside:avoid}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:7.6pt}details{border:0;padding:0}
details>summary{font-weight:bold;list-style:none}figure{margin:0;break-inside:avoid}
.toc a{color:inherit;text-decoration:none}.part{margin-top:1em;font-weight:bold}
"""


def contents() -> list[tuple[str, list[str]]]:
    """(part, its pages) in the order of the contents."""
    toc = teaching.data("_toc.yml")
    parts = [(part["caption"], [c["file"] for c in part["chapters"]]) for part in toc["parts"]]
    return [("", [toc["root"]]), *parts]


def bibliography() -> str:
    """The entries of the bibliography that BibTeX has, one line each."""
    lines = []
    for f in plain.bibliography().values():
        f = {key: re.sub(r"[{}]|\s+", lambda m: " " * m[0].isspace(), x) for key, x in f.items()}
        where = f.get("booktitle") or f.get("journal") or f.get("howpublished") or ""
        who = f.get("author", "").replace(" and ", "; ")
        lines.append(f"- {who} ({f.get('year', '')}). *{f.get('title', '')}*. {where}")
    return "\n".join(sorted(lines))


def markdown_page(name: str) -> str:
    """A page that is no notebook, as HTML."""
    text = (BOOK / f"{name}.md").read_text("utf-8")
    text = re.sub(r"(?ms)^```\{bibliography\}.*?^```", lambda m: bibliography(), text)
    term = re.compile(r"(?m)^(\S.*)\n  (.*)$")
    text = re.sub(r"(?ms)^```\{glossary\}\n(.*?)^```", lambda m: term.sub(r"\1\n: \2", m[1]), text)
    text = re.sub(r"(?ms)^```\{figure\} (\S+)\n(.*?)^```", _figure, text)
    return markdown(plain.prose(text, plain.titles(), {}))


def _figure(match: re.Match) -> str:
    path = (BOOK / match[1]).resolve()
    caption = plain.OPTION.sub("", match[2]).strip()
    body = path.read_text("utf-8") if path.suffix == ".svg" else ""
    return f"<figure>{body}<figcaption>{html.escape(caption)}</figcaption></figure>"


def chapter(name: str) -> str:
    """A chapter as HTML; its code is shown, solutions are open, sliders stand still."""
    cells = plain.convert(name)["cells"]
    shown = [c for c in cells if "parameters" not in c["metadata"].get("tags", [])]
    return "".join(map(cell, shown))


def whole() -> str:
    """The book as one page."""
    body, toc, number = [], ["<h1>Contents</h1>"], 0
    for part, names in contents():
        if part:
            toc.append(f'<p class="part">{html.escape(part)}</p>')
        for name in names:
            short = name.rsplit("/", 1)[-1]
            if name.startswith("chapters/"):
                number += 1
                text = chapter(short).replace("<h1>", f"<h1>{number}. ", 1)
            else:
                text = markdown_page(name)
            text = text.replace("<h1>", f'<h1 id="{short}">', 1)
            head = re.search(r"<h1[^>]*>(.*?)</h1>", text, re.DOTALL)
            words = head[1] if head else short
            toc.append(f'<div class="toc"><a href="#{short}">{words}</a></div>')
            body.append(text)
    text = "".join([body[0], *toc, *body[1:]])
    text = re.sub(r'href="(?:\.\./)?(?:chapters/)?([\w-]+)\.(?:ipynb|md)"', r'href="#\1"', text)
    text = text.replace("<details>", "<details open>")
    return document("Confidential language modelling", f"<main>{text}</main>", style=STYLE + PRINT)


def pdf(out: Path = BUILT / "print" / "confidential-language-modelling.pdf") -> Path:
    """Print the book; exits 1 where there is no Chromium."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"make pdf: needs one of {', '.join(BROWSERS)} to print")
    out.parent.mkdir(parents=True, exist_ok=True)
    page = out.with_suffix(".html")
    page.write_text(whole(), "utf-8")
    with tempfile.TemporaryDirectory() as home:
        flags = "--headless --no-sandbox --disable-gpu --no-pdf-header-footer --disable-sync"
        flags += " --generate-pdf-document-outline --virtual-time-budget=20000 --no-first-run"
        flags += " --disable-background-networking --disable-component-update --disable-quic"
        command = [browser, *flags.split(), f"--user-data-dir={home}", f"--print-to-pdf={out}"]
        run = subprocess.run([*command, page.as_uri()], capture_output=True, text=True)
    if run.returncode or not out.is_file():
        sys.exit(f"make pdf: {browser} printed nothing: {run.stderr[-300:]}")
    return out


# --------------------------------------------------------------------------- the instructor's
def exam(secret: bytes, name: str) -> list[tuple[str, float]]:
    """The questions of one student, and their answers: the numbers follow from the key of the
    class and the name, so nobody makes either without the key."""
    from crtcourse import keys, recipes

    rng = random.Random(keys.seed(secret, "exam", name))
    out = []
    for question, given in teaching.data("teaching/exam.yml").items():
        numbers = {key: rng.choice(values) for key, values in given["numbers"].items()}
        out.append((given["asks"].format(**numbers), recipes.EXAM[question](**numbers)))
    return out


def edition(key: dict[str, Any] | None) -> dict[str, str]:
    """Every page of the edition by its file's name, as markdown."""
    solutions = (BOOK / "teaching" / "solutions.txt").read_text(encoding="utf-8")
    out = {"notes": teaching.notes(), "answers": teaching.questions(answers=True)}
    out |= {"solutions": solutions}
    table = []
    for name in key["students"] if key else ():
        asked = exam(bytes.fromhex(key["secret"]), name)
        lines = [f"# Exam: {name}", "", "Give each answer to three digits; two points each.", ""]
        out[f"exam-{name}"] = "\n".join([*lines, *(f"1. {text}\n" for text, _ in asked)])
        table.append(f"| {name} | " + " | ".join(f"{answer:.4g}" for _, answer in asked) + " |")
    if table:
        asked = teaching.data("teaching/exam.yml")
        head = f"| student | {' | '.join(asked)} |\n|{'---|' * (1 + len(asked))}\n"
        out["exam solutions"] = "# Solutions of the exams\n\n" + head + "\n".join(table)
    return out


def instructor(key: str = "", folder: Path = BUILT / "instructor") -> Path:
    """Write the edition, with exams where there is the key that ``crtbook lab`` wrote."""
    from crtcourse import keys
    from crtlib import files

    written = edition(keys.read(Path(key)) if key else None)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, text in written.items():
        body = f"<main>{markdown(text)}</main>"
        files.write_text(folder / f"{name}.html", document(name, body))
    links = {f"{name}.html": name for name in written}
    files.write_text(folder / "index.html", listed("For the instructor", links))
    return folder / "index.html"


FORMS: dict[str, Callable[..., Path]] = {
    "page": write_page,
    "slides": slides,
    "pdf": pdf,
    "instructor": instructor,
}

if __name__ == "__main__":
    form, *words = sys.argv[1:] or [""]
    if form not in FORMS:
        sys.exit(f"form={form!r}: must be one of {', '.join(FORMS)}")
    try:
        print(FORMS[form](*words))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
