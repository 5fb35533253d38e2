"""What lies beside a corpus' data: a dataset card (README.md) and its Croissant description.

>>> "load_dataset" in BODY
True
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from crtlib import outputs

SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
BODY = """
# {name}

{warning}

| | |
|---|---|
| turns | {turns:,} |
| threads (rows) | {threads:,} |
| users | {users:,} ({users_are}) |
| turns that somebody labelled | {labelled:,} |
| dates | {dates} |
| languages | unknown |
| made from | {sources} |
| corpus hash (SHA-256) | `{sha256}` |

One row is one thread: `id`, `user`, `turns` (`speaker`, `text`, `time`, `labelled`, `secrets`) and
`extra`, a JSON object. What is secret are the spans `secrets` of a turn: `kind`, and `start` and
`end` as half-open offsets in Unicode code points. Where `labelled` is false nobody has looked.

```python
from datasets import load_dataset
corpus = load_dataset("path/to/this/folder")
```
"""
USERS = {
    "column": "a column of the source named them",
    "thread": "no person was known, so each thread counts as one",
    "unknown": "unknown",
}


@dataclass(frozen=True)
class Facts:
    """What a corpus folder holds. ``sha256`` is the corpus hash: over ``jsonl.canonical`` of its
    dialogues in order, so the same for Parquet and JSONL, any sharding and any labels. ``first``
    and ``last`` are dates, None where no turn has a time."""

    turns: int
    threads: int
    users: int
    labelled: int
    sha256: str
    shards: int
    users_are: str
    policy: str | None
    first: str | None
    last: str | None


def write(
    folder: Path, name: str, facts: Facts, sources: Sequence[str], *, simulated: bool
) -> None:
    """Write README.md and croissant.json beside the ``data`` of ``folder``."""
    splits = sorted({p.name.rpartition("-of-")[0].rpartition("-")[0] for p in _shards(folder)})
    front = {
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": s, "path": f"data/{s}-*.parquet"} for s in splits],
            }
        ],
        "license": "mit" if simulated else "other",
        "size_categories": [next((s for n, s in SIZES if facts.threads < n), "n>1M")],
        "tags": ["crtlib"],
    }
    body = BODY.format(
        name=name,
        warning="Simulated: it is about nobody."
        if simulated
        else "**This corpus holds personal text. It is not for release.**",
        turns=facts.turns,
        threads=facts.threads,
        users=facts.users,
        users_are=USERS[facts.users_are],
        labelled=facts.labelled,
        dates=f"{facts.first} to {facts.last}" if facts.first else "none",
        sources=", ".join(sources) or "a simulation",
        sha256=facts.sha256,
    )
    text = f"---\n{yaml.safe_dump(front, sort_keys=True)}---\n{body}"
    (folder / "README.md").write_text(text, encoding="utf-8")
    described = croissant(folder, name, simulated=simulated)
    text = json.dumps(described, indent=1, ensure_ascii=False)
    (folder / "croissant.json").write_text(text + "\n", encoding="utf-8")


def _shards(folder: Path) -> list[Path]:
    return sorted((folder / "data").glob("*.parquet"))


CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "sc": "https://schema.org/",
    "dct": "http://purl.org/dc/terms/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "includes": "cr:includes",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "recordSet": "cr:recordSet",
    "repeated": "cr:repeated",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def croissant(folder: Path, name: str, *, simulated: bool) -> dict[str, Any]:
    """The Croissant 1.0 description of the shards in ``folder``, as JSON-LD."""
    shards = _shards(folder)
    files = [
        {
            "@type": "cr:FileObject",
            "@id": f"data/{p.name}",
            "name": p.name,
            "contentUrl": f"data/{p.name}",
            "encodingFormat": "application/vnd.apache.parquet",
            "sha256": outputs.sha256(p),
        }
        for p in shards
    ]
    together = {
        "@type": "cr:FileSet",
        "@id": "shards",
        "name": "shards",
        "containedIn": [{"@id": f["@id"]} for f in files],
        "encodingFormat": "application/vnd.apache.parquet",
        "includes": "data/*.parquet",
    }
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": f"{name}: threads of messages, one row a thread.",
        "license": "https://opensource.org/license/mit" if simulated else "other",
        "datePublished": datetime.date.today().isoformat(),
        "distribution": [*files, together],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "threads",
                "name": "threads",
                "field": _fields(),
            }
        ],
    }


def _fields() -> list[dict[str, Any]]:
    """The columns; those of a turn are sub-fields of ``turns``."""
    columns = [_field(column, column) for column in ("id", "user", "extra")]
    inner = [
        _field(f"turns/{part}", "turns", kind, path=part)
        for part, kind in (
            *((p, "sc:Text") for p in ("speaker", "text")),
            ("time", "sc:DateTime"),
            ("labelled", "sc:Boolean"),
            ("secrets", "sc:Text"),
        )
    ]
    inner[-1]["repeated"] = True
    turns = {"@type": "cr:Field", "@id": "threads/turns", "name": "turns", "repeated": True}
    return [*columns, turns | {"subField": inner}]


def _field(name: str, column: str, kind: str = "sc:Text", *, path: str = "") -> dict[str, Any]:
    source: dict[str, Any] = {"fileSet": {"@id": "shards"}, "extract": {"column": column}}
    if path:
        source["transform"] = {"jsonPath": f"$[*].{path}"}
    last = name.rpartition("/")[2]
    return {
        "@type": "cr:Field",
        "@id": f"threads/{name}",
        "name": last,
        "dataType": kind,
        "source": source,
    }
