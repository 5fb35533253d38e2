"""The whole published book as one PDF: ``python book/bind.py``.

It is one page of HTML (``render.py``: formulas as MathML, figures inside) that Chromium prints. The
library's reference is left to the web pages. Nothing comes from the network.
"""

import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import plain
import render
import teaching

BOOK = Path(__file__).resolve().parent
ROOT = BOOK.parent

OUT = ROOT / "_build" / "print" / "confidential-language-modelling.pdf"
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
    return render.markdown(plain.prose(text, plain.titles()))


def _figure(match: re.Match) -> str:
    path = (BOOK / match[1]).resolve()
    caption = plain.OPTION.sub("", match[2]).strip()
    body = path.read_text("utf-8") if path.suffix == ".svg" else ""
    return f"<figure>{body}<figcaption>{html.escape(caption)}</figcaption></figure>"


def chapter(name: str) -> str:
    """A chapter as HTML; its code is shown, solutions are open, sliders stand still."""
    cells = plain.convert(name)["cells"]
    shown = [c for c in cells if "parameters" not in c["metadata"].get("tags", [])]
    return "".join(map(render.cell, shown))


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
    return render.document(
        "Confidential language modelling", f"<main>{text}</main>", style=render.STYLE + PRINT
    )


def pdf(out: Path) -> Path:
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


if __name__ == "__main__":
    print(pdf(OUT))
