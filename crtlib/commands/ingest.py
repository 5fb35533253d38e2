"""``crtlib ingest``: a corpus of files of other forms."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt

COLUMNS = "Columns"


def ingest(
    sources: Annotated[
        list[Path], opt("Files, folders, or hub:owner/name.", "place", argument="SOURCE")
    ],
    out: Annotated[Path, opt("Folder of the corpus.", "place")],
    format: Annotated[
        str,
        opt("How SOURCE is written: csv, tsv, parquet, jsonl, hub, mbox, eml, text."),
    ] = "auto",
    user: Annotated[str | None, opt("The person. [guessed]", group=COLUMNS)] = None,
    thread: Annotated[str | None, opt("The conversation. [guessed]", group=COLUMNS)] = None,
    speaker: Annotated[str | None, opt("Who speaks. [guessed]", group=COLUMNS)] = None,
    text: Annotated[str | None, opt("What is said. [guessed]", group=COLUMNS)] = None,
    time: Annotated[str | None, opt("When it was said. [guessed]", group=COLUMNS)] = None,
    no_users: Annotated[
        bool,
        opt("No person is known, or not in all rows of --user: a thread is one.", group=COLUMNS),
    ] = False,
    agents: Annotated[
        str,
        opt(
            "Who answers, so that threads stay whole: names, addresses, @domains.",
            metavar="A,...",
            group=COLUMNS,
        ),
    ] = "",
    dates: Annotated[str, opt("3/4/2026 is dmy or mdy. [refused]", group=COLUMNS)] = "auto",
    rename: Annotated[
        str, opt("Names for columns by number: 5=sent.", metavar="N=B,...", group=COLUMNS)
    ] = "",
    encoding: Annotated[
        str, opt("Codec such as cp1252; auto: byte order mark, else UTF-8.")
    ] = "auto",
    skip_bad: Annotated[bool, opt("Leave bad rows out, and count them.")] = False,
    max_bad: Annotated[float, opt("Share of bad rows that still passes.")] = 0.05,
    limit: Annotated[int | None, opt("The first rows only.")] = None,
    split: Annotated[str, opt("Name of the split.")] = "train",
    yes: Annotated[bool, opt("Take the guessed columns.", group=COLUMNS)] = False,
    force: Annotated[bool, opt("Replace a corpus that exists.", "place")] = False,
) -> Answer:
    """Make a corpus of CSV, TSV, Parquet, JSONL, chats, mail or plain text.

    Rows are streamed: memory does not grow with the text. Columns are guessed by their names; the
    guess is shown before it is used. Rows that were left out are listed in rejected.csv.

    Example: crtlib ingest mails.csv --user customer --text body --skip-bad --out corpus
    """
    import click

    from crtlib.text import ingest as library

    def ask(shown: str) -> bool:
        print(shown, file=sys.stderr)
        return click.confirm("Are these the columns?", default=True, err=True)

    pairs = (part.partition("=") for part in rename.split(",") if part)
    summary = library.ingest(
        sources,
        out,
        format=format,
        columns={"user": user, "thread": thread, "speaker": speaker, "text": text, "time": time},
        no_users=no_users,
        agents=[name.strip().lower() for name in agents.split(",") if name.strip()],
        dates=dates,
        rename={place.strip(): name.strip() for place, _, name in pairs},
        encoding=encoding,
        skip_bad=skip_bad,
        max_bad=max_bad,
        limit=limit,
        split=split,
        yes=yes,
        ask=ask if sys.stdin.isatty() else None,
        force=force,
        progress=sys.stderr.isatty(),
    )
    return Answer(asdict(summary), [library.table(summary)])
