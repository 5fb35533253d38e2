"""Tasks to and answers from labelling tools: our page, Label Studio, doccano, Prodigy, spaCy, CSV.

Offsets are half-open, in Unicode code points, as Python slices.

>>> task = Task("judge-00001", "d", "ann", 0, "judge", "I am Ann.", "", "")
>>> prodigy([task], {})[0]
{'text': 'I am Ann.', 'spans': [], 'meta': {'task': 'judge-00001'}}
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import jinja2

from crtlib import files
from crtlib.text.records import Secret

FORMS = ("page", "labelstudio", "doccano", "prodigy", "spacy", "csv", "xlsx")
COLUMNS = ("task", "part", "before", "text", "after", "secrets", "done")
Spans = Mapping[str, Sequence[Secret]]
"""Spans to begin with, by task."""


@dataclass(frozen=True, slots=True)
class Task:
    """One turn to be read: its name, thread, user and number there, ``part`` ("judge" or "teach"),
    its text and what was said ``before`` and ``after``, a line a turn."""

    task: str
    id: str
    user: str
    turn: int
    part: str
    text: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Span:
    """What a tool says is secret: offsets as the tool counts, and the value if it gives one. With
    ``start`` None every occurrence of the value is meant."""

    kind: str
    start: int | None
    end: int | None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A task as it came back; ``text`` where the tool gives it, ``done`` if somebody read it."""

    number: int
    task: str
    done: bool
    spans: tuple[Span, ...]
    text: str | None = None


def check(kinds: Sequence[str], forms: Sequence[str]) -> None:
    """Refuse kinds that a tool cannot show, and forms that are none of ``FORMS``."""
    if not 1 <= len(set(kinds)) == len(kinds) <= 9:
        raise ValueError("--kinds: must be 1 to 9 different names")
    if bad := [k for k in kinds if not re.fullmatch(r"[^\W\d][\w-]{0,39}", k)]:
        raise ValueError(f"--kinds: {bad[0]!r} must be letters, digits, '-' and '_'")
    if not forms or (bad := [f for f in forms if f not in FORMS]):
        raise ValueError(f"--for: {bad[0] if forms else ''!r} must be one of {', '.join(FORMS)}")
    if "xlsx" in forms:
        _openpyxl()


def write(
    form: str, folder: Path, tasks: Sequence[Task], flags: Spans, about: Mapping[str, Any]
) -> list[str]:
    """Write the tasks for one tool into ``folder``; the names of the files."""
    kinds = about["kinds"]
    if form == "page":
        texts = {"page.html": page(tasks, flags, about)}
    elif form == "labelstudio":
        records = json.dumps(labelstudio(tasks, flags), ensure_ascii=False, indent=1)
        texts = {"labelstudio.json": records, "labelstudio.xml": labelstudio_config(kinds)}
    elif form in ("csv", "xlsx"):
        table = [COLUMNS, *(sheet_row(t, flags.get(t.task, ())) for t in tasks)]
        if form == "xlsx":
            return _write_xlsx(folder / "sheet.xlsx", table)
        buffer = io.StringIO()
        csv.writer(buffer).writerows(table)
        texts = {"sheet.csv": "\ufeff" + buffer.getvalue()}
    else:
        make = {"doccano": doccano, "prodigy": prodigy, "spacy": spacy}[form]
        lines = [json.dumps(record, ensure_ascii=False) for record in make(tasks, flags)]
        text = "\n".join(lines) + "\n"  # some tools end lines at these two as well
        texts = {f"{form}.jsonl": text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return list(texts)


def labelstudio(tasks: Sequence[Task], flags: Spans) -> list[dict[str, Any]]:
    """Label Studio's tasks, with predictions where there are flags."""
    return [
        {
            "data": {"task": t.task, "text": t.text, "before": t.before, "after": t.after},
            "predictions": [{"model_version": "policy", "result": [_result(s, t) for s in spans]}]
            if (spans := flags.get(t.task))
            else [],
        }
        for t in tasks
    ]


def _result(s: Secret, t: Task) -> dict[str, Any]:
    value = {"start": s.start, "end": s.end, "text": t.text[s.start : s.end], "labels": [s.kind]}
    return {"from_name": "label", "to_name": "text", "type": "labels", "value": value}


def labelstudio_config(kinds: Sequence[str]) -> str:
    """The labelling configuration of a Label Studio project."""
    labels = "\n".join(f"    <Label value={quoteattr(k)}/>" for k in kinds)
    context = '  <Text name="{0}" value="${0}"/>'
    return (
        f'<View>\n  <Labels name="label" toName="text">\n{labels}\n  </Labels>\n'
        f"{context.format('before')}\n"
        '  <Text name="text" value="$text" granularity="symbol"/>\n'
        f"{context.format('after')}\n</View>\n"
    )


def doccano(tasks: Sequence[Task], flags: Spans) -> list[dict[str, Any]]:
    """doccano's JSONL for sequence labelling."""
    return [{"task": t.task, "text": t.text, "label": _triples(t, flags)} for t in tasks]


def spacy(tasks: Sequence[Task], flags: Spans) -> list[dict[str, Any]]:
    """spaCy's offsets."""
    return [{"task": t.task, "text": t.text, "entities": _triples(t, flags)} for t in tasks]


def _triples(t: Task, flags: Spans) -> list[list[Any]]:
    return [[s.start, s.end, s.kind] for s in flags.get(t.task, ())]


def prodigy(tasks: Sequence[Task], flags: Spans) -> list[dict[str, Any]]:
    """Prodigy's JSONL."""
    return [
        {
            "text": t.text,
            "spans": [{"start": a, "end": b, "label": k} for a, b, k in _triples(t, flags)],
            "meta": {"task": t.task},
        }
        for t in tasks
    ]


def sheet_row(t: Task, spans: Sequence[Secret]) -> tuple[str, ...]:
    """A row of the spreadsheet: secrets as lines ``kind: value``."""
    secrets = "\n".join(dict.fromkeys(f"{s.kind}: {t.text[s.start : s.end]}" for s in spans))
    return tuple(map(files.harmless, (t.task, t.part, t.before, t.text, t.after, secrets, "")))


def _openpyxl() -> Any:
    try:
        import openpyxl
    except ImportError:
        raise ValueError("xlsx: needs pip install openpyxl; or choose --for csv") from None
    return openpyxl


def _write_xlsx(path: Path, table: Sequence[Sequence[str]]) -> list[str]:
    book = _openpyxl().Workbook(write_only=True)
    sheet = book.create_sheet("tasks")
    for row in table:
        sheet.append([re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "\ufffd", cell) for cell in row])
    book.save(path)
    return [path.name]


# The page.


def page(tasks: Sequence[Task], flags: Spans, about: Mapping[str, Any]) -> str:
    """The labelling page: one self-contained file, without network."""
    home = resources.files("crtlib.text") / "templates"
    script, style = ((home / f"label.{e}").read_text("utf-8") for e in ("js", "css"))
    data = {
        "labels": about["labels"],
        "kinds": list(about["kinds"]),
        "tasks": [
            {
                **{"task": t.task, "part": t.part, "text": t.text},
                **{"before": t.before, "after": t.after},
                "secrets": [
                    {"kind": s.kind, "start": s.start, "end": s.end} for s in flags.get(t.task, ())
                ],
            }
            for t in tasks
        ],
    }
    embedded = json.dumps(data, ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        embedded = embedded.replace(sign, f"\\u{ord(sign):04x}")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((home / "label.html").read_text("utf-8"))
    return template.render(
        kinds=list(about["kinds"]),
        hashes={"script": _csp(script), "style": _csp(style)},
        **{"script": _safe(script), "style": _safe(style), "data": _safe(embedded)},
    )


def _safe(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _csp(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# Reading.


def read(path: str | os.PathLike, form: str = "auto") -> list[Answer]:
    """The answers in a file that a tool exported; ``ValueError`` names file and task number."""
    path = Path(path)
    files.check_regular(path)
    if form not in ("auto", *FORMS):
        raise ValueError(f"--format: {form!r} must be one of auto, {', '.join(FORMS)}")
    suffix = path.suffix.lower()
    if form == "xlsx" or suffix == ".xlsx":
        return _sheet(path, _read_xlsx(path))
    if form == "csv" or suffix == ".csv":
        return _sheet(path, _read_csv(path))
    with files.reading(path) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
        records = _values(text)
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: is not UTF-8") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name}: is not JSON") from None
    answers = []
    for number, record in enumerate(records, 1):
        try:
            answers.append(_answer(number, record))
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            raise ValueError(
                f"{path.name}, task {number}: is in none of the forms {', '.join(FORMS)}"
            ) from None
    return answers


def _values(text: str) -> list[Any]:
    """The records of a JSON list, of our page's export, or of JSON lines."""
    if text.lstrip().startswith("["):
        return json.loads(text)
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    if isinstance(whole, dict) and whole.get("schema") == "crtlib/labels/1":
        return whole["tasks"]
    return [whole]


def _answer(number: int, r: dict[str, Any]) -> Answer:
    if "data" in r:
        return _from_labelstudio(number, r)
    if "secrets" in r and "task" in r:  # our page
        spans = [Span(s["kind"], s["start"], s["end"]) for s in r["secrets"]]
        return Answer(number, r["task"], bool(r["done"]), _checked(spans))
    if "meta" in r:  # Prodigy
        spans = [Span(s["label"], s["start"], s["end"]) for s in r.get("spans", [])]
        done = r.get("answer") == "accept"
        return Answer(number, r["meta"]["task"], done, _checked(spans), r["text"])
    if isinstance(r.get("entities"), list) and r["entities"] and isinstance(r["entities"][0], dict):
        spans = [Span(e["label"], e["start_offset"], e["end_offset"]) for e in r["entities"]]
    else:
        name = next(k for k in ("label", "labels", "entities", "") if k in r or not k)
        triples = r[name]
        spans = [Span(kind, start, end) for start, end, kind in triples]
    task = r["task"] if "task" in r else r["meta_task"]
    return Answer(number, task, True, _checked(spans), r["text"])


def _from_labelstudio(number: int, r: dict[str, Any]) -> Answer:
    """The last annotation that was not cancelled."""
    given = [a for a in r.get("annotations", []) if not a.get("was_cancelled")]
    results = given[-1]["result"] if given else []
    values = [x["value"] for x in results if x.get("type") == "labels"]
    spans = [Span(v["labels"][0], v["start"], v["end"], v.get("text")) for v in values]
    data = r["data"]
    return Answer(number, data["task"], bool(given), _checked(spans), data["text"])


def _checked(spans: list[Span]) -> tuple[Span, ...]:
    for s in spans:
        if type(s.start) is not int or type(s.end) is not int or not isinstance(s.kind, str):
            raise ValueError("a span needs integers and a kind")
    return tuple(spans)


def _read_csv(path: Path) -> Iterator[list[str]]:
    csv.field_size_limit(max(csv.field_size_limit(), files.LONGEST))
    with files.reading(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
        try:
            yield from csv.reader(text)
        except UnicodeDecodeError:
            raise ValueError(f"{path.name}: is not UTF-8; save it as CSV in UTF-8") from None
        except csv.Error:
            raise ValueError(f"{path.name}: is no CSV file") from None


def _read_xlsx(path: Path) -> Iterator[list[str]]:
    try:
        book = _openpyxl().load_workbook(path, read_only=True, data_only=True)
    except (OSError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: is no Excel file ({type(error).__name__})") from None
    for row in book.worksheets[0].iter_rows(values_only=True):
        yield ["" if cell is None else str(cell) for cell in row]


def _sheet(path: Path, rows: Iterator[list[str]]) -> list[Answer]:
    header = [name.strip().lower() for name in next(rows, [])]
    if not {"task", "text", "secrets", "done"} <= set(header):
        raise ValueError(f"{path.name}: must have the columns {', '.join(COLUMNS)}")
    answers = []
    for number, row in enumerate(rows, 1):
        cells = dict(zip(header, row, strict=False))
        if not cells.get("task"):
            continue
        spans = []
        for line in cells.get("secrets", "").replace("\r", "").split("\n"):
            kind, colon, value = line.removeprefix("'").partition(":")
            if line.strip() and not (colon and value.strip()):
                raise ValueError(
                    f"{path.name}, task {number}: a line of its secrets is not 'kind: value'"
                )
            if line.strip():
                spans.append(Span(kind.strip(), None, None, value.strip()))
        done = cells.get("done", "").strip().lower() in ("x", "yes", "true", "1")
        answers.append(Answer(number, cells["task"], done, tuple(spans), cells["text"]))
    return answers
