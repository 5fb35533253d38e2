"""``crtlib screen``: deduplicate, redact and split a corpus (Algorithm 1)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from crtlib.commands import On, Workers


def screen(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder or JSONL, or a URL.")],
    out: Annotated[Path, typer.Option(help="Folder of the screened corpus, or a URL.")],
    policy: Annotated[
        str | None,
        typer.Option(help="Redaction policy pi; several, joined by +. [the corpus' own, if any]"),
    ] = None,
    conservative: Annotated[str, typer.Option(help="Conservative policy pi_c.")] = "everything",
    labels: Annotated[
        Path | None, typer.Option(help="Folder of crtlib label, for the three rates.")
    ] = None,
    unit: Annotated[str, typer.Option(help="Data point: turn, dialogue or user.")] = "turn",
    gamma: Annotated[float, typer.Option(help="Share of pi's finds to miss on purpose.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the misses.")] = 0,
    dedup: Annotated[str, typer.Option(help="Scope: all (Algorithm 1), flagged, none.")] = "all",
    dedup_by: Annotated[str, typer.Option(help="Duplicates are: exact, bloom or near.")] = "exact",
    duplicates: Annotated[str, typer.Option(help="Second occurrences: mask or drop.")] = "mask",
    keep_ids: Annotated[
        bool, typer.Option("--keep-ids", help="Leave ids and users in clear in the public part.")
    ] = False,
    form: Annotated[str, typer.Option("--as", help="parquet or jsonl.")] = "parquet",
    reveal: Annotated[
        int, typer.Option(min=0, help="Examples of each kind, in clear, into a private page.")
    ] = 0,
    workers: Workers = 1,
    executor: On = "processes:",
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Deduplicate, redact and split a corpus into public and private points (Algorithm 1).

    Policies: list:FILE, regex:FILE.toml, regex:CORPUS, tagger:FOLDER (from crtlib tagger),
    presidio, ner:MODEL, flair:MODEL, cautious, everything, none, oracle; tagger, ner and flair also
    as tagger_conservative:FOLDER, which flags all that is not surely plain. Without --labels (from
    crtlib label) nothing is known of what was missed. The folder can be given to train, tagger and
    report in place of a corpus.

    Example: crtlib screen corpus --policy list:customers.csv+regex:ours.toml
    --conservative cautious --labels labels --out screened
    """
    from crtlib.accounting import odometer
    from crtlib.experiments import executors
    from crtlib.reports import screening
    from crtlib.screening.corpus import How, fitting
    from crtlib.text import corpora

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
        form,  # type: ignore[arg-type]
    )
    options = {"labels": labels, "reveal": reveal, "force": force}
    with executors.pool(executor, workers) as pool:
        outcome = screening.make(
            corpus, out, how, executor=pool, progress=sys.stderr.isatty(), **options
        )
    # What is trained on the result, wherever it lies, is then known to be of this text.
    odometer.Registry(odometer.home()).register(corpora.corpus_hash(corpus), corpora.units(corpus))
    if as_json:
        print((out / "summary.json").read_text(encoding="utf-8"), end="")
    elif outcome is None:
        print(f"{out}: up to date")
    else:
        print(screening.text(outcome))
        print(f"{out}/screening.html" + (f"   {out}/private/examples.html" if reveal else ""))
