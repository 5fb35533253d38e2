"""``crtlib label``: turns to be read by people, and what they marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from crtlib.commands import On, Workers

label = typer.Typer(
    no_args_is_help=True, help="Draw turns to be read by people; bring in what they marked."
)


@label.command()
def sample(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder or JSONL, or a URL.")],
    out: Annotated[Path, typer.Option(help="Folder of the labels, or a URL.")],
    secrets: Annotated[
        int, typer.Option(help="Users with a secret that are wanted in the judging part.")
    ] = 400,
    turns: Annotated[int | None, typer.Option(help="Turns to read instead.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Guess of the share of turns with a secret.")
    ] = None,
    teach: Annotated[int, typer.Option(help="Further turns, to teach a tagger.")] = 0,
    by: Annotated[str, typer.Option(help="What is drawn: user or dialogue; one turn each.")] = (
        "user"
    ),
    policy: Annotated[
        str | None, typer.Option(help="Prefills the teaching part, never the judging part.")
    ] = None,
    kinds: Annotated[str, typer.Option(help="Kinds of secret, with commas between.")] = (
        "name,address,phone,id,other"
    ),
    context: Annotated[int, typer.Option(help="Turns shown before and after.")] = 2,
    forms: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help="page, jsonl or labelstudio; repeatable. [page]",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Default: from the operating system.")] = None,
    workers: Workers = 1,
    executor: On = "processes:",
    force: Annotated[bool, typer.Option("--force", help="Replace labels that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw turns to be read, and say how many labels certify which bound.

    Example: crtlib label sample corpus --secrets 400 --teach 600 --out labels
    """
    from crtlib.experiments import executors
    from crtlib.screening.flagging import spread
    from crtlib.text import labels as library

    with executors.pool(executor, workers) as pool:
        summary = library.sample(
            corpus,
            out,
            secrets=secrets,
            turns=turns,
            rate=rate,
            teach=teach,
            by=by,
            policy=spread(policy, pool) if policy else None,
            cautious=spread("cautious", pool) if policy else None,
            kinds=[kind.strip() for kind in kinds.split(",")],
            context=context,
            forms=forms or ["page"],
            seed=seed,
            force=force,
        )
    print(json.dumps(summary.json()) if as_json else library.table(summary))


@label.command("import")
def take(
    corpus: Annotated[Path, typer.Argument(help="The corpus that the turns were drawn from.")],
    file: Annotated[Path, typer.Argument(help="What the page or the tool exported.")],
    labels: Annotated[Path, typer.Option(help="Folder of crtlib label sample.")],
    annotator: Annotated[str, typer.Option(help="Who read them: a short name.")] = "a",
    second: Annotated[
        Path | None, typer.Option(help="A second reader's file; prints the agreement.")
    ] = None,
    trim: Annotated[bool, typer.Option("--trim", help="Cut white space off spans.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept unread turns; labels then count as given.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Bring in labels, checked against the text they were made for.

    Example: crtlib label import corpus labels-ann-20260301.json --labels labels
    """
    from crtlib.text import label_import as library

    summary = library.take(
        corpus,
        file,
        labels,
        annotator=annotator,
        second=second,
        trim=trim,
        partial=partial,
    )
    print(json.dumps(summary.json()) if as_json else library.table(summary))
