"""Slides for each hour of the plan, made from the chapters: ``python book/slides.py [FOLDER]``.

A deck is one HTML file that fetches nothing. Arrow keys, space, Page Up and Page Down, Home and End
move, ``n`` shows the notes, and printing gives a slide a page. Text is as large as its slide
holds; a tall figure has its caption beside it. What becomes a slide: the five questions on what
came before, with their answers behind them; the objectives; of each section its question, boxes,
common mistakes, figures and demonstration; what a lab asks; the exercises of the hour.
"""

import html
import re
import sys
from pathlib import Path
from typing import Any

import plain
import render
import teaching

BOOK = Path(__file__).resolve().parent

MOST = 32
"""Slides of a deck, at most; figures come before boxes where there are more."""
QUOTED = re.compile(r"(?ms)^> \*\*(?P<head>[^\n]*)\*\*\n(?P<body>(?:^>[^\n]*\n?)*)")
FOLDED = re.compile(r"(?ms)^<details><summary>([^\n]*mistakes?)</summary>\n(.*?)^</details>")
QUESTION = re.compile(r"(?m)^\*\*Question\.\*\* (.*)$")
TABLE = re.compile(r"(?m)(?:^\|.*\n?)+")
HEADING = re.compile(r"(?m)^## (.*)$")
SKIP = ("What you will learn", "What you will do", "Before you start", "Exercise", "Proof")
STYLE = """
body{background:#1d2733;overflow:hidden;font-size:max(22px,min(2.3vw,4.1vh))}
@media(max-width:600px){body{font-size:17px}}
section{display:none;position:fixed;inset:0;background:#fff;padding:3.2vh 6vw 6vh;overflow:auto}
section.on{display:flex;flex-direction:column}section>div{margin:auto 0;width:100%}
h2{margin:.1em 0 .4em;color:var(--accent);font-size:1.35em}.title>div{margin:0}
.math.block{font-size:.9em}li,p{overflow-wrap:anywhere}
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
    aside = f"<aside>{render.markdown(notes)}</aside>" if notes else ""
    head = render.parser().renderInline(html.escape(title, quote=False))
    return f'<section class="{kind}"><h2>{head}</h2><div>{body}</div>{aside}</section>'


def _boxes(text: str, section: str) -> list[str]:
    """The question and the boxes of a piece of prose."""
    out = [
        slide(section, render.markdown(f"**Question.** {question}"))
        for question in QUESTION.findall(text)
    ]
    if section == "What you hand in":  # of a lab: its tasks
        out += [slide(section, render.markdown(table)) for table in TABLE.findall(text)]
    for head, quoted in QUOTED.findall(text):
        if not head.startswith(SKIP):
            body = "\n".join(line.removeprefix(">").strip() for line in quoted.splitlines())
            out.append(slide(head, render.markdown(body)))
    return out + [slide(head, render.markdown(body)) for head, body in FOLDED.findall(text)]


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
    """A figure as a slide, under what its caption calls it, a tall one beside its caption; of
    sliders the figure with its slider."""
    out = []
    caption = cell["metadata"].get("mystnb", {}).get("figure", {}).get("caption", "")
    name, said = re.match(r"(?s)(?:\*\*([^*]*)[.:]\*\*)?(.*)", caption).groups()
    for made in cell["outputs"]:
        data = made.get("data", {})
        if 'type="range"' in "".join(data.get("text/html", "")):
            out.append((0, slide(section, render.output(made))))
        elif {"image/png", "image/svg+xml"} & {*data}:
            body = f"{render.output(made)}<div>{render.markdown(plain.without_links(said))}</div>"
            out.append((0, slide(name or section, body, kind="figure")))
    return out


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
    last = _closing(hour)
    room = MOST - len(first) - len(last)
    while len(body) > room:  # the last box goes first, then the last figure
        worst = max(range(len(body)), key=lambda k: (body[k][0], k))
        del body[worst]
    inside = "".join([*first, *(s for _, s in body), *last, "<footer></footer>"])
    style = render.STYLE + STYLE
    return render.document(f"Hour {number}: {hour['title']}", inside, style=style, script=SCRIPT)


def _closing(hour: dict[str, Any]) -> list[str]:
    """What is shown live, the exercises, likely mistakes."""
    known = plain.titles()
    live = "".join(
        f"<li>{html.escape(x['show'])} ({known[x['notebook']]})</li>" for x in hour["live"]
    )
    out = [slide("Shown live", f"<ul>{live}</ul>")]
    if hour["class"]:
        asked = "".join(f"<li>{html.escape(known[x])}</li>" for x in hour["class"])
        out.append(slide("In pairs", f"<ul>{asked}</ul>"))
    rows = "".join(f"<li>{_raised(wrong)}</li>" for wrong, _ in hour["wrong"])
    do = "\n".join(f"- {wrong} {what}" for wrong, what in hour["wrong"])
    return [*out, slide("What is wrong here?", f"<ul>{rows}</ul>", do)]


def write(folder: Path) -> list[Path]:
    """All decks and a page that links them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, links = [], []
    for number, hour in enumerate(teaching.data("teaching/plan.yml"), 1):
        path = folder / f"hour-{number:02d}.html"
        path.write_text(deck(number, hour), "utf-8")
        paths.append(path)
        links.append(
            f'<li><a href="{path.name}">Hour {number}: {html.escape(hour["title"])}</a></li>'
        )
    body = f"<main><h1>Slides</h1><ul>{''.join(links)}</ul></main>"
    (folder / "index.html").write_text(render.document("Slides", body), "utf-8")
    return paths


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else BOOK.parent / "_build" / "slides"
    for path in write(target):
        print(path)
