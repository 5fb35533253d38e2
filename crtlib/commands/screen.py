"""``crtlib screen``: deduplicate, redact and split a corpus (Algorithm 1)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from crtlib.commands import Workers, pool
from crtlib.options import Answer, opt


def screen(
    corpus: Annotated[Path, opt("Corpus folder or JSONL.", "place", argument="CORPUS")],
    out: Annotated[Path, opt("Folder of the screened corpus.", "place")],
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
    from crtlib.reports import screening
    from crtlib.screening.corpus import How, fitting

    how = How(
        policy or fitting(corpus),
        conservative,
        unit,
        gamma,
        seed,
        dedup,  # type: ignore[arg-type]  # refused there where it is none of them
        dedup_by,  # type: ignore[arg-type]
        duplicates,  # type: ignore[arg-type]
        keep_ids,
    )
    with pool(workers) as executor:
        outcome = screening.make(
            corpus,
            out,
            how,
            labels=labels,
            reveal=reveal,
            force=force,
            executor=executor,
            progress=sys.stderr.isatty(),
        )
    summary = json.loads((out / "summary.json").read_bytes())
    lines = [f"{out}: up to date"]
    if outcome is not None:
        examples = f"   {out}/private/examples.html" if reveal else ""
        lines = [screening.text(outcome), f"{out}/screening.html{examples}"]
    return Answer(summary, lines)
