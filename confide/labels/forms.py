"""Write drawn turns as forms in which people mark secrets: one page, JSON lines, Label Studio."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from markupsafe import Markup

from confide.labels.label_tasks import LABEL_FORMS, LABEL_TEMPLATES, LabelTask, PrefilledSpans
from crtlib.arguments import argument_error
from crtlib.text.package_data import fill_page, read_package_file


# --------------------------------------------------------------------------- the forms
def check_label_forms(forms: Sequence[str]) -> None:
    """Refuse a form that is not one of ``LABEL_FORMS``."""
    for form in forms or [""]:
        if form not in LABEL_FORMS:
            raise argument_error("forms", f"{form!r} must be one of {', '.join(LABEL_FORMS)}")


def write_forms(
    forms: Sequence[str],
    folder: Path,
    tasks: Sequence[LabelTask],
    flags: PrefilledSpans,
    facts: Mapping,
) -> list[str]:
    """Write the tasks into ``folder`` in some of the ``LABEL_FORMS``; return the file names."""
    texts: dict[str, str] = {}
    check_label_forms(forms)
    for form in forms:
        if form == "page":
            texts["page.html"] = render_labelling_page(tasks, flags, facts)
        elif form == "jsonl":
            lines = [json.dumps(r, ensure_ascii=False) + "\n" for r in json_records(tasks, flags)]
            text = "".join(lines)  # some tools end lines at these too
            text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
            texts["tasks.jsonl"] = text
        else:
            studio = json.dumps(labelstudio_tasks(tasks, flags), ensure_ascii=False, indent=1)
            texts["labelstudio.json"] = studio
            texts["labelstudio.xml"] = labelstudio_config(facts["kinds"])
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return list(texts)


def labelstudio_tasks(tasks: Sequence[LabelTask], flags: PrefilledSpans) -> list[dict[str, Any]]:
    """The tasks for Label Studio, with predictions if there are flags."""
    studio_tasks = []
    form_fields = {"from_name": "label", "to_name": "text", "type": "labels"}
    for t in tasks:
        values = [
            {"start": s.start, "end": s.end, "text": t.text[s.start : s.end], "labels": [s.kind]}
            for s in flags.get(t.task, ())
        ]
        result = [form_fields | {"value": value} for value in values]
        predictions = [{"model_version": "policy", "result": result}] if result else []
        task_fields = {"task": t.task, "text": t.text, "before": t.before, "after": t.after}
        studio_tasks.append({"data": task_fields, "predictions": predictions})
    return studio_tasks


def labelstudio_config(kinds: Sequence[str]) -> str:
    """The labelling configuration of a Label Studio project."""
    return (
        fill_page("labelstudio.xml", LABEL_TEMPLATES, kinds=[quoteattr(kind) for kind in kinds])
        + "\n"
    )


def json_records(tasks: Sequence[LabelTask], flags: PrefilledSpans) -> list[dict[str, Any]]:
    """The tasks as our page holds them, one line each in JSONL. A reader marks the secrets of a
    task and sets ``"done": true``."""
    return [
        {
            **{name: getattr(t, name) for name in ("task", "part", "text", "before", "after")},
            "done": False,
            "secrets": [
                {**asdict(s), "value": t.text[s.start : s.end]} for s in flags.get(t.task, ())
            ],
        }
        for t in tasks
    ]


def render_labelling_page(
    tasks: Sequence[LabelTask], flags: PrefilledSpans, facts: Mapping[str, Any]
) -> str:
    """The labelling page: one self-contained file that needs no network."""
    script, style = (read_package_file(name, LABEL_TEMPLATES) for name in ("label.js", "label.css"))
    return fill_page(
        "label.html",
        LABEL_TEMPLATES,
        data={
            "labels": facts["labels"],
            "kinds": facts["kinds"],
            "tasks": json_records(tasks, flags),
        },
        rules=facts.get("rules", ()),
        role=facts.get("role", "first"),
        hashes={"script": _csp_hash(script), "style": _csp_hash(style)},
        **{"script": Markup(script), "style": Markup(style)},
    )


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
