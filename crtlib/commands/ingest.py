"""``crtlib ingest``: a corpus of files of other forms."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def ingest(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE...", help="Files, folders, URLs, or hub:owner/name."),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the corpus, or a URL: s3://bucket/corpus.")],
    format: Annotated[
        str,
        typer.Option(
            help="How SOURCE is written: csv, tsv, parquet, jsonl, text-jsonl, messages, datasets, "
            "mbox, eml, text."
        ),
    ] = "auto",
    user: Annotated[str | None, typer.Option(help="Column with the person; guessed.")] = None,
    thread: Annotated[str | None, typer.Option(help="Column with the conversation.")] = None,
    speaker: Annotated[str | None, typer.Option(help="Column with who speaks.")] = None,
    text: Annotated[str | None, typer.Option(help="Column with what is said.")] = None,
    time: Annotated[str | None, typer.Option(help="Column with when it was said.")] = None,
    no_users: Annotated[
        bool, typer.Option("--no-users", help="No person is known: each thread is a user.")
    ] = False,
    speaker_map: Annotated[
        str, typer.Option(metavar="A=B,...", help="Rename speakers: agent=SYS,client=USR.")
    ] = "",
    encoding: Annotated[
        str, typer.Option(help="auto: byte order mark, else UTF-8; or a codec such as cp1252.")
    ] = "auto",
    keep: Annotated[str, typer.Option(help="Further columns: all, none, or a,b.")] = "all",
    quotes: Annotated[str, typer.Option(help="Quoted lines of e-mails: drop or keep.")] = "drop",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad rows out, and count them.")
    ] = False,
    max_bad: Annotated[float, typer.Option(help="Share of bad rows that still passes.")] = 0.01,
    limit: Annotated[int | None, typer.Option(help="The first rows only.")] = None,
    split: Annotated[str, typer.Option(help="Name of the split.")] = "train",
    shard: Annotated[int, typer.Option(help="Size of a shard in MiB.")] = 128,
    yes: Annotated[bool, typer.Option("--yes", help="Take the guessed columns.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a corpus that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a corpus of CSV, TSV, Parquet, JSONL, chats, mail, plain text or a dataset.

    Rows are streamed: memory does not grow with the text. Columns are guessed by their names; the
    guess is shown before it is used. Rows that were left out are listed in rejected.csv.

    Example: crtlib ingest mails.csv --user customer --text body --skip-bad --out corpus
    """
    from crtlib.text import ingest as library
    from crtlib.text.messages import Columns

    def ask(shown: str) -> bool:
        print(shown, file=sys.stderr)
        return typer.confirm("Are these the columns?", default=True, err=True)

    summary = library.ingest(
        sources,
        out,
        format=format,
        columns=Columns(user, thread, speaker, text, time),
        no_users=no_users,
        speaker_map=_pairs(speaker_map),
        encoding=encoding,
        keep=keep,
        quotes=quotes,
        skip_bad=skip_bad,
        max_bad=max_bad,
        limit=limit,
        split=split,
        shard=shard,
        yes=yes,
        ask=ask if sys.stdin.isatty() and not as_json else None,
        force=force,
        progress=sys.stderr.isatty(),
    )
    print(json.dumps(summary.json()) if as_json else library.table(summary))


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.split("=", 1) for part in text.split(",") if part.strip()]
    if bad := next((pair for pair in pairs if len(pair) < 2 or not pair[0].strip()), None):
        raise ValueError(f"--speaker-map: {'='.join(bad)!r} must be A=B, with commas between")
    return {old.strip(): new.strip() for old, new in pairs}
