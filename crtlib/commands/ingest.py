"""``crtlib ingest``: a corpus of files of other forms."""

from __future__ import annotations

import sys
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
        opt(
            "How SOURCE is written: csv, tsv, parquet, jsonl, text-jsonl, messages, datasets, "
            "mbox, eml, text."
        ),
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
    speaker_map: Annotated[
        str,
        opt("Rename speakers: agent=SYS,client=USR.", metavar="A=B,...", group=COLUMNS),
    ] = "",
    encoding: Annotated[
        str, opt("Codec such as cp1252; auto: byte order mark, else UTF-8.")
    ] = "auto",
    keep: Annotated[str, opt("Further columns: all, none, or a,b.", group=COLUMNS)] = "all",
    quotes: Annotated[str, opt("Quoted lines of e-mails: drop or keep.")] = "drop",
    skip_bad: Annotated[bool, opt("Leave bad rows out, and count them.")] = False,
    max_bad: Annotated[float, opt("Share of bad rows that still passes.")] = 0.05,
    limit: Annotated[int | None, opt("The first rows only.")] = None,
    split: Annotated[str, opt("Name of the split.")] = "train",
    shard: Annotated[int, opt("Size of a shard in MiB.", "place")] = 128,
    yes: Annotated[bool, opt("Take the guessed columns.", group=COLUMNS)] = False,
    force: Annotated[bool, opt("Replace a corpus that exists.", "place")] = False,
) -> Answer:
    """Make a corpus of CSV, TSV, Parquet, JSONL, chats, mail, plain text or a dataset.

    Rows are streamed: memory does not grow with the text. Columns are guessed by their names; the
    guess is shown before it is used. Rows that were left out are listed in rejected.csv.

    Example: crtlib ingest mails.csv --user customer --text body --skip-bad --out corpus
    """
    import click

    from crtlib.text import ingest as library

    def ask(shown: str) -> bool:
        print(shown, file=sys.stderr)
        return click.confirm("Are these the columns?", default=True, err=True)

    summary = library.ingest(
        sources,
        out,
        format=format,
        columns=library.Columns(user, thread, speaker, text, time),
        no_users=no_users,
        agents=[name.strip().lower() for name in agents.split(",") if name.strip()],
        dates=dates,
        rename=_pairs(rename, "rename"),
        speaker_map=_pairs(speaker_map, "speaker-map"),
        encoding=encoding,
        keep=keep,
        quotes=quotes,
        skip_bad=skip_bad,
        max_bad=max_bad,
        limit=limit,
        split=split,
        shard=shard,
        yes=yes,
        ask=ask if sys.stdin.isatty() else None,
        force=force,
        progress=sys.stderr.isatty(),
    )
    return Answer(summary.json(), [library.table(summary)])


def _pairs(text: str, flag: str) -> dict[str, str]:
    pairs = [part.split("=", 1) for part in text.split(",") if part.strip()]
    if bad := next((pair for pair in pairs if len(pair) < 2 or not pair[0].strip()), None):
        raise ValueError(f"--{flag}: {'='.join(bad)!r} must be A=B, with commas between")
    return {old.strip(): new.strip() for old, new in pairs}
