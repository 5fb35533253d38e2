"""The book in forms other than its web pages: ``python book/forms.py FORM``.

``page NAME [-p NAME VALUE ...]`` makes a page from one notebook, ``slides`` a deck for each hour of
the plan, ``pdf`` the whole published book, and ``instructor [class.key]`` what students do not see:
notes, answers, the labs' solutions and, for the students of a class, an exam each.

Every form is self-contained HTML: prose by markdown-it, formulas as MathML, figures as data,
coloured code. Nothing is fetched, so a page can be mailed; Chromium prints the PDF.
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


def render_formula(text: str, options: dict[str, Any]) -> str:
    """A formula as MathML, or its source where it cannot be converted."""
    text = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", text)
    text = re.sub(r"\\(?:operatorname|mathrm)\{([^}]*)\}", r"\\mathrm{\1}", text)
    text = re.sub(r"(\\(?:ln|log)(?:_\w)?)(?![a-z({_])(?=\s*\\?[a-zA-Z])", r"\1\\,", text)
    text = text.replace("'", "\N{PRIME}")  # raised, an apostrophe is a speck without a math font
    display = "block" if options.get("display_mode") else "inline"
    try:
        return converter.convert(text, display=display)
    except Exception:  # whatever the converter cannot read is shown as it was written
        return f"<code>{html.escape(text)}</code>"


@functools.cache
def make_parser() -> MarkdownIt:
    """Markdown with tables, definition lists and formulas."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table").use(deflist_plugin)
    return parser.use(dollarmath_plugin, renderer=render_formula, allow_space=True)


def render_markdown(text: str) -> str:
    """Plain Markdown (see :mod:`plain`) as HTML."""
    return make_parser().render(text)


def render_output(out: dict[str, Any]) -> str:
    """One output as HTML: a figure, a table or a text."""
    data = {k: "".join(v) if isinstance(v, list) else v for k, v in out.get("data", {}).items()}
    if "image/svg+xml" in data:
        return data["image/svg+xml"]
    if "image/png" in data:
        alt = html.escape(str(out.get("metadata", {}).get("alt", "Figure of this section")))
        return f'<img alt="{alt}" src="data:image/png;base64,{data["image/png"].strip()}">'
    if "text/html" in data:
        return data["text/html"]
    if "text/markdown" in data:
        return render_markdown(data["text/markdown"])
    text = data.get("text/plain") or "".join(out.get("text", ""))
    return f'<div class="out"><pre>{html.escape(text)}</pre></div>' if text.strip() else ""


def render_code(source: str) -> str:
    """Python code, coloured."""
    return highlight(source, PythonLexer(), FORMATTER)


def render_cell(c: dict[str, Any]) -> str:
    """One cell as HTML: prose, or code with what it printed."""
    text = "".join(c["source"])
    if c["cell_type"] == "markdown":
        return render_markdown(text)
    tags = {*c["metadata"].get("tags", [])}
    outputs = "".join(render_output(o) for o in c["outputs"] if o.get("name") != "stderr")
    if "remove-cell" in tags:
        return ""
    if "hide-input" in tags:
        return f"<details><summary>Code</summary>{render_code(text)}</details>{outputs}"
    return render_code(text) + outputs


def render_document(title: str, body: str, *, style: str = STYLE, script: str = "") -> str:
    """A whole page; its figures and sliders need nothing from outside."""
    css = style + FORMATTER.get_style_defs(".code")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        '</title><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{css}</style>{script}</head><body>{body}</body></html>"
    )


def render_links(title: str, links: Mapping[str, str]) -> str:
    """A page of links to the files of a folder, with their names."""
    items = (f'<li><a href="{html.escape(x)}">{html.escape(y)}</a></li>' for x, y in links.items())
    return render_document(title, f"<main><h1>{title}</h1><ul>{''.join(items)}</ul></main>")


def render_notebook(notebook: dict[str, Any]) -> str:
    """A plain notebook as a page."""
    first = "".join(notebook["cells"][0]["source"])
    title = first.splitlines()[0].lstrip("# ")
    return render_document(title, f"<main>{''.join(map(render_cell, notebook['cells']))}</main>")


def write_page(name: str = "", *arguments: str) -> Path:
    """Write ``_build/page/NAME.html`` from the recorded chapter NAME, or from what papermill makes
    of it with the other arguments."""
    if not name:
        raise ValueError("NB: must name a notebook, as in make page NB=canary")
    out = BUILT / "page" / f"{name}.ipynb"
    plain.write_chapters(out.parent, [name])
    if arguments:
        command = [Path(sys.executable).parent / "papermill", BOOK.parent / "notebooks" / out.name]
        if failed := subprocess.run([*command, out, *arguments], cwd=BOOK.parent).returncode:
            sys.exit(failed)
    written = out.with_suffix(".html")
    written.write_text(render_notebook(plain.read_notebook(out)), "utf-8")
    out.unlink()
    return written


# --------------------------------------------------------------------------- slides
MOST = 32
"""The maximal number of slides in a deck; where there are more, figures have priority over boxes.
These become slides: the five questions about earlier hours, with their answers behind them; the
objectives; from each section its question, boxes, common mistakes, figures and demonstration; what
a lab asks for; and the exercises of the hour. Arrow keys, space, Page Up and Page Down, Home and
End move, ``n`` shows the notes, and printing puts each slide on a page. Text is as large as the
slide allows."""
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


def render_slide(title: str, body: str, notes: str = "", kind: str = "") -> str:
    """One slide."""
    aside = f"<aside>{render_markdown(notes)}</aside>" if notes else ""
    head = make_parser().renderInline(html.escape(title, quote=False))
    return f'<section class="{kind}"><h2>{head}</h2><div>{body}</div>{aside}</section>'


def _slides_of_prose(text: str, section: str) -> list[str]:
    """The question and the boxes in a piece of prose, as slides."""
    out = [
        render_slide(section, render_markdown(f"**Question.** {question}"))
        for question in QUESTION.findall(text)
    ]
    if section == "What you hand in":  # in a lab: its tasks
        out += [render_slide(section, render_markdown(table)) for table in TABLE.findall(text)]
    for head, quoted in QUOTED.findall(text):
        if not head.startswith(SKIP):
            body = "\n".join(line.removeprefix(">").strip() for line in quoted.splitlines())
            out.append(
                render_slide(
                    section if head in ("Warning", "Note") else head, render_markdown(body)
                )
            )
    return out + [render_slide(head, render_markdown(body)) for head, body in FOLDED.findall(text)]


def list_slides_of_chapter(name: str, sections: list[str] | None) -> list[tuple[int, str]]:
    """(importance, slide) for a chapter; slides with importance 0 are kept first."""
    cells = plain.convert_chapter(name)["cells"]
    out: list[tuple[int, str]] = []
    section = ""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for k, piece in enumerate(HEADING.split("".join(cell["source"]))):
                if k % 2:
                    section = piece
                elif teaching.is_told(section, sections):
                    out += [(1, s) for s in _slides_of_prose(piece, section)]
        elif teaching.is_told(section, sections):
            out += _slides_of_figure(cell, section)
    return out


def _slides_of_figure(cell: dict[str, Any], section: str) -> list[tuple[int, str]]:
    """A figure as slides, one for each row of panels, titled as in its caption. A figure that is
    still tall is beside its caption; a figure with a slider keeps the slider."""
    out = []
    caption = cell["metadata"].get("mystnb", {}).get("figure", {}).get("caption", "")
    name, words_of_caption = re.match(r"(?s)(?:\*\*([^*]*)[.:]\*\*)?(.*)", caption).groups()
    for output in cell["outputs"]:
        data = output.get("data", {})
        if 'type="range"' in "".join(data.get("text/html", "")):
            out.append((0, render_slide(section, render_output(output))))
        elif {"image/png", "image/svg+xml"} & {*data}:
            words = plain.strip_links(words_of_caption)
            for drawing in _split_rows_of_panels(render_output(output)):
                body = f"{drawing}<div>{render_markdown(words)}</div>"
                out.append((0, render_slide(name or section, body, words, kind="figure")))
    return out


def _split_rows_of_panels(drawing: str) -> list[str]:
    """A tall drawing once for each row of its panels, with unique ids; others unchanged."""
    box = pages.BOX.search(drawing)
    if not box or float(box[1].split()[3]) < 0.8 * float(box[1].split()[2]):
        return [drawing]
    rows = pages.split_rows_of_panels(drawing)
    return [re.sub(r'(id="|href="#|url\(#)', rf"\g<1>r{k}-", row) for k, row in enumerate(rows)]


def _raise_escaped(text: str) -> str:
    text = teaching.raise_and_lower(html.escape(text))
    return re.sub(r"\{(su[bp])\}`([^`]*)`", r"<\1>\2</\1>", text)


def render_deck(number: int, hour: dict[str, Any]) -> str:
    """The deck of one hour."""
    notes = f"**Say:** {hour['say']}\n\n**Ask:** {hour['ask']}\n\n**Wait for:** {hour['wait']}"
    goals = "".join(f"<li>{_raise_escaped(x)}</li>" for x in hour["objectives"])
    first = [render_slide(hour["title"], f"<p>Hour {number}</p>", notes, "title on")]
    for _, question, answer in teaching.draw_quiz(number):
        folded = f"<details><summary>Answer</summary><p>{_raise_escaped(answer)}</p></details>"
        asked = f"<p>{_raise_escaped(question)}</p>"
        first.append(render_slide("What came before", asked + folded))
    first.append(render_slide("After this hour you can", f"<ul>{goals}</ul>", notes))
    body = [x for name in hour["read"] for x in list_slides_of_chapter(name, hour.get("sections"))]
    if proof := hour.get("derivation"):  # before the slide that states its result
        states = next(k for k, (_, s) in enumerate(body) if f"<h2>{proof['before']}" in s)
        body[states:states] = [
            (0, render_slide(title, render_markdown(text))) for title, text in proof["steps"]
        ]
    last = _closing_slides(hour)
    room = MOST - len(first) - len(last)
    while len(body) > room:  # remove the last box first, then the last figure
        worst = max(range(len(body)), key=lambda k: (body[k][0], k))
        del body[worst]
    inside = "".join([*first, *(s for _, s in body), *last, "<footer></footer>"])
    style = STYLE + DECK
    return render_document(f"Hour {number}: {hour['title']}", inside, style=style, script=SCRIPT)


@functools.cache
def collect_exercises() -> dict[str, tuple[str, str]]:
    """The title and the text of each exercise, by its label."""
    out = {}
    for name in plain.list_chapters():
        cells = plain.read_notebook(BOOK / "chapters" / f"{name}.ipynb")["cells"]
        numbers = plain.stored_values(cells)
        for cell in (c for c in cells if c["cell_type"] == "markdown"):
            for match in plain.FENCE.finditer("".join(cell["source"])):
                options = dict(plain.OPTION.findall(match["body"]))
                if match["kind"] == "exercise":
                    body = plain.OPTION.sub("", match["body"]).strip()
                    text = plain.convert_prose(body, plain.collect_titles(), numbers)
                    out[options["label"]] = match["arg"].strip(), text
    return out


def _closing_slides(hour: dict[str, Any]) -> list[str]:
    """Slides for what is shown live, the exercises, and likely mistakes."""
    titles = plain.collect_titles()
    live = "".join(
        f"<li>{html.escape(x['show'])} ({titles[x['notebook']]}, "
        f"<i>{html.escape(teaching.find_section(x))}</i>)</li>"
        for x in hour["live"]
    )
    out = [render_slide("Shown live", f"<ul>{live}</ul>")]
    for label in hour["class"]:
        title, text = collect_exercises()[label]
        out.append(render_slide(f"In pairs: {title}", render_markdown(text)))
    rows = "".join(f"<li>{_raise_escaped(wrong)}</li>" for wrong, _ in hour["wrong"])
    do = "\n".join(f"- {wrong} {remedy}" for wrong, remedy in hour["wrong"])
    return [*out, render_slide("What is wrong here?", f"<ul>{rows}</ul>", do)]


def write_slides(folder: Path = BUILT / "slides") -> Path:
    """Write all decks, and a page that links to them."""
    folder.mkdir(parents=True, exist_ok=True)
    links = {}
    for number, hour in enumerate(teaching.load_yaml("teaching/plan.yml"), 1):
        name = f"hour-{number:02d}.html"
        (folder / name).write_text(render_deck(number, hour), "utf-8")
        links[name] = f"Hour {number}: {hour['title']}"
    (folder / "index.html").write_text(render_links("Slides", links), "utf-8")
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


def list_contents() -> list[tuple[str, list[str]]]:
    """(part, its pages) in the order of the contents."""
    toc = teaching.load_yaml("_toc.yml")
    parts = [(part["caption"], [c["file"] for c in part["chapters"]]) for part in toc["parts"]]
    return [("", [toc["root"]]), *parts]


def format_bibliography() -> str:
    """The entries of the bibliography in BibTeX, one line each."""
    lines = []
    for f in plain.parse_bibliography().values():
        f = {key: re.sub(r"[{}]|\s+", lambda m: " " * m[0].isspace(), x) for key, x in f.items()}
        where = f.get("booktitle") or f.get("journal") or f.get("howpublished") or ""
        who = f.get("author", "").replace(" and ", "; ")
        lines.append(f"- {who} ({f.get('year', '')}). *{f.get('title', '')}*. {where}")
    return "\n".join(sorted(lines))


def render_markdown_page(name: str) -> str:
    """A page that is not a notebook, as HTML."""
    text = (BOOK / f"{name}.md").read_text("utf-8")
    text = re.sub(r"(?ms)^```\{bibliography\}.*?^```", lambda m: format_bibliography(), text)
    term = re.compile(r"(?m)^(\S.*)\n  (.*)$")
    text = re.sub(r"(?ms)^```\{glossary\}\n(.*?)^```", lambda m: term.sub(r"\1\n: \2", m[1]), text)
    text = re.sub(r"(?ms)^```\{figure\} (\S+)\n(.*?)^```", _render_figure, text)
    return render_markdown(plain.convert_prose(text, plain.collect_titles(), {}))


def _render_figure(match: re.Match) -> str:
    path = (BOOK / match[1]).resolve()
    caption = plain.OPTION.sub("", match[2]).strip()
    body = path.read_text("utf-8") if path.suffix == ".svg" else ""
    return f"<figure>{body}<figcaption>{html.escape(caption)}</figcaption></figure>"


def render_chapter(name: str) -> str:
    """A chapter as HTML; its code is shown, solutions are open, sliders do not move."""
    cells = plain.convert_chapter(name)["cells"]
    visible = [c for c in cells if "parameters" not in c["metadata"].get("tags", [])]
    return "".join(map(render_cell, visible))


def render_book() -> str:
    """The whole book as one page."""
    body, toc, number = [], ["<h1>Contents</h1>"], 0
    for part, names in list_contents():
        if part:
            toc.append(f'<p class="part">{html.escape(part)}</p>')
        for name in names:
            short = name.rsplit("/", 1)[-1]
            if name.startswith("chapters/"):
                number += 1
                text = render_chapter(short).replace("<h1>", f"<h1>{number}. ", 1)
            else:
                text = render_markdown_page(name)
            text = text.replace("<h1>", f'<h1 id="{short}">', 1)
            head = re.search(r"<h1[^>]*>(.*?)</h1>", text, re.DOTALL)
            words = head[1] if head else short
            toc.append(f'<div class="toc"><a href="#{short}">{words}</a></div>')
            body.append(text)
    text = "".join([body[0], *toc, *body[1:]])
    text = re.sub(r'href="(?:\.\./)?(?:chapters/)?([\w-]+)\.(?:ipynb|md)"', r'href="#\1"', text)
    text = text.replace("<details>", "<details open>")
    return render_document(
        "Confidential language modelling", f"<main>{text}</main>", style=STYLE + PRINT
    )


def print_book(out: Path = BUILT / "print" / "confidential-language-modelling.pdf") -> Path:
    """Print the book; exits 1 where there is no Chromium."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"make pdf: needs one of {', '.join(BROWSERS)} to print")
    out.parent.mkdir(parents=True, exist_ok=True)
    page = out.with_suffix(".html")
    page.write_text(render_book(), "utf-8")
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
def draw_exam(secret: bytes, name: str) -> list[tuple[str, float]]:
    """The questions of one student, and their answers. The numbers follow from the key of the class
    and the name, so nobody can make either without the key."""
    from crtcourse import keys, recipes

    rng = random.Random(keys.derive_seed(secret, "exam", name))
    out = []
    for question, entry in teaching.load_yaml("teaching/exam.yml").items():
        numbers = {key: rng.choice(values) for key, values in entry["numbers"].items()}
        out.append((entry["asks"].format(**numbers), recipes.EXAM[question](**numbers)))
    return out


def write_edition_pages(key: dict[str, Any] | None) -> dict[str, str]:
    """Every page of the edition by its file name, as Markdown."""
    solutions = (BOOK / "teaching" / "solutions.txt").read_text(encoding="utf-8")
    out = {"notes": teaching.render_notes(), "answers": teaching.render_questions(answers=True)}
    out |= {"solutions": solutions}
    table = []
    for name in key["students"] if key else ():
        questions = draw_exam(bytes.fromhex(key["secret"]), name)
        lines = [f"# Exam: {name}", "", "Give each answer to three digits; two points each.", ""]
        out[f"exam-{name}"] = "\n".join([*lines, *(f"1. {text}\n" for text, _ in questions)])
        table.append(f"| {name} | " + " | ".join(f"{answer:.4g}" for _, answer in questions) + " |")
    if table:
        questions = teaching.load_yaml("teaching/exam.yml")
        head = f"| student | {' | '.join(questions)} |\n|{'---|' * (1 + len(questions))}\n"
        out["exam solutions"] = "# Solutions of the exams\n\n" + head + "\n".join(table)
    return out


def write_instructor_edition(key: str = "", folder: Path = BUILT / "instructor") -> Path:
    """Write the edition, with exams if ``key`` is the key file that ``crtbook lab`` wrote."""
    from crtcourse import keys
    from crtlib import files

    written = write_edition_pages(keys.read_key(Path(key)) if key else None)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, text in written.items():
        body = f"<main>{render_markdown(text)}</main>"
        files.write_text(folder / f"{name}.html", render_document(name, body))
    links = {f"{name}.html": name for name in written}
    files.write_text(folder / "index.html", render_links("For the instructor", links))
    return folder / "index.html"


FORMS: dict[str, Callable[..., Path]] = {
    "page": write_page,
    "slides": write_slides,
    "pdf": print_book,
    "instructor": write_instructor_edition,
}

if __name__ == "__main__":
    form, *words = sys.argv[1:] or [""]
    if form not in FORMS:
        sys.exit(f"form={form!r}: must be one of {', '.join(FORMS)}")
    try:
        print(FORMS[form](*words))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
