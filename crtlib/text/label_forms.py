"""Tasks to and answers from who labels: our page, JSON lines of the same records, Label Studio.

Offsets are half-open, in Unicode code points, as Python slices.

>>> task = Task("judge-00001", "d", "ann", 0, "judge", "I am Ann.", "", "")
>>> records([task], {})[0]["secrets"]
[]
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import jinja2

from crtlib import files
from crtlib.text.records import Secret

FORMS = ("page", "jsonl", "labelstudio")
Spans = Mapping[str, Sequence[Secret]]
"""Spans to begin with, by task."""


@dataclass(frozen=True, slots=True)
class Task:
    """One turn to be read: its name, thread, user and number there, ``part`` ("judge" or "teach"),
    its text and what was said ``before`` and ``after``, a line a turn."""

    task: str
    id: str
    user: str = field(repr=False)
    turn: int
    part: str
    text: str = field(repr=False)
    before: str = field(repr=False)
    after: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Span:
    """What is said to be secret: offsets as the tool counts, and the value if it gives one."""

    kind: str
    start: int
    end: int
    value: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A task as it came back; ``text`` where the tool gives it, ``done`` if somebody read it."""

    number: int
    task: str
    done: bool
    spans: tuple[Span, ...]
    text: str | None = field(default=None, repr=False)


def check(kinds: Sequence[str], forms: Sequence[str]) -> None:
    """Refuse kinds that a tool cannot show, and forms that are none of ``FORMS``."""
    if not 1 <= len(set(kinds)) == len(kinds) <= 9:
        raise ValueError("--kinds: must be 1 to 9 different names")
    if bad := [k for k in kinds if not re.fullmatch(r"[^\W\d][\w-]{0,39}", k)]:
        raise ValueError(f"--kinds: {bad[0]!r} must be letters, digits, '-' and '_'")
    if not forms or (bad := [f for f in forms if f not in FORMS]):
        raise ValueError(f"--for: {bad[0] if forms else ''!r} must be one of {', '.join(FORMS)}")


def write(
    form: str, folder: Path, tasks: Sequence[Task], flags: Spans, about: Mapping[str, Any]
) -> list[str]:
    """Write the tasks for one tool into ``folder``; the names of the files."""
    if form == "page":
        texts = {"page.html": page(tasks, flags, about)}
    elif form == "jsonl":
        lines = [json.dumps(r, ensure_ascii=False) + "\n" for r in records(tasks, flags)]
        text = "".join(lines)  # some tools end lines at these two as well
        texts = {"tasks.jsonl": text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")}
    else:
        studio = json.dumps(labelstudio(tasks, flags), ensure_ascii=False, indent=1)
        texts = {"labelstudio.json": studio, "labelstudio.xml": labelstudio_config(about["kinds"])}
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


def records(tasks: Sequence[Task], flags: Spans) -> list[dict[str, Any]]:
    """The tasks as our page holds them, a line each in JSONL. Who has read one marks its secrets
    and says ``"done": true``."""
    return [
        {
            **{"task": t.task, "part": t.part, "text": t.text, "before": t.before},
            **{"after": t.after, "done": False},
            "secrets": [
                {"kind": s.kind, "start": s.start, "end": s.end} for s in flags.get(t.task, ())
            ],
        }
        for t in tasks
    ]


# The page.


def page(tasks: Sequence[Task], flags: Spans, about: Mapping[str, Any]) -> str:
    """The labelling page: one self-contained file, without network."""
    home = resources.files("crtlib.text") / "templates"
    script, style = ((home / f"label.{e}").read_text("utf-8") for e in ("js", "css"))
    data = {
        "labels": about["labels"],
        "kinds": list(about["kinds"]),
        "tasks": records(tasks, flags),
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


def read(path: str | os.PathLike) -> list[Answer]:
    """The answers in a file that a tool exported; ``ValueError`` names file and task number."""
    path = Path(path)
    files.check_regular(path)
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
    spans = [Span(s["kind"], s["start"], s["end"]) for s in r["secrets"]]
    return Answer(number, r["task"], bool(r["done"]), _checked(spans), r.get("text"))


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
