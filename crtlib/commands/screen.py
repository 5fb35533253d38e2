"""``crtlib screen``: deduplicate, redact and split a corpus (Algorithm 1)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from crtlib.commands import On, Workers
from crtlib.options import Answer, opt


def screen(
    corpus: Annotated[str, opt("Corpus folder or JSONL, or a URL.", "place", argument="CORPUS")],
    out: Annotated[str, opt("Folder of the screened corpus, or a URL.", "place", metavar="path")],
    policy: Annotated[
        str | None, opt("Redaction policy pi; several, joined by +. [the corpus' own, if any]")
    ] = None,
    conservative: Annotated[str, opt("Conservative policy pi_c.")] = "everything",
    labels: Annotated[Path | None, opt("Folder of crtlib label, for the three rates.")] = None,
    unit: Annotated[str, opt("Data point: turn, dialogue or user.")] = "turn",
    gamma: Annotated[float, opt("Share of what pi flags to miss on purpose.")] = 0.0,
    seed: Annotated[int, opt("Seed of the misses.")] = 0,
    dedup: Annotated[
        str, opt("Scope: all (Algorithm 1), flagged or none.", group="Duplicates")
    ] = "all",
    dedup_by: Annotated[str, opt("Likeness: exact, bloom or near.", group="Duplicates")] = "exact",
    duplicates: Annotated[
        str, opt("Second occurrences: mask or drop.", group="Duplicates")
    ] = "mask",
    keep_ids: Annotated[bool, opt("Leave ids and users in clear in the public part.")] = False,
    reveal: Annotated[int, opt("Examples of each kind, in clear, into a private page.", ge=0)] = 0,
    workers: Workers = 1,
    executor: On = "processes:",
    force: Annotated[bool, opt("Replace a folder that exists.", "place")] = False,
) -> Answer:
    """Deduplicate, redact and split a corpus into public and private points (Algorithm 1).

    Policies: list:FILE, regex:FILE.toml, regex:CORPUS, tagger:FOLDER (from crtlib tagger),
    presidio, ner:MODEL, cautious, everything, none, oracle; tagger and ner also as
    tagger_conservative:FOLDER, which flags all that is not surely plain. Without --labels (from
    crtlib label) nothing is known of what was missed. The folder can be given to train, tagger and
    report in place of a corpus.

    Example: crtlib screen corpus --policy list:customers.csv+regex:ours.toml
    --conservative cautious --labels labels --out screened
    """
    from crtlib import roots
    from crtlib.experiments import executors
    from crtlib.reports import screening
    from crtlib.screening.corpus import How, fitting

    source, place = roots.root(corpus, "corpus"), roots.root(out, "out")
    both = [f"{str(name).rstrip('/')}/" for name in (corpus, out)]
    nested = both[0].startswith(both[1]) or both[1].startswith(both[0])
    if nested and not roots.is_local(place):
        raise ValueError(f"--out: {out} is, holds or lies in what --corpus names")
    text = roots.here(source)
    if note := roots.note(place):
        print(note, file=sys.stderr)
    how = How(
        policy or fitting(text),
        conservative,
        unit,
        gamma,
        seed,
        dedup,  # type: ignore[arg-type]  # refused there where it is none of them
        dedup_by,  # type: ignore[arg-type]
        duplicates,  # type: ignore[arg-type]
        keep_ids,
    )
    options: dict[str, Any] = {"labels": labels, "reveal": reveal, "force": force, "beside": place}
    with executors.pool(executor, workers) as pool, roots.written(place) as folder:
        outcome = screening.make(
            text, folder, how, executor=pool, progress=sys.stderr.isatty(), **options
        )
        summary = json.loads((folder / "summary.json").read_bytes())
    lines = [f"{out}: up to date"]
    if outcome is not None:
        examples = f"   {out}/private/examples.html" if reveal else ""
        lines = [screening.text(outcome), f"{out}/screening.html{examples}"]
    return Answer(summary, lines)
