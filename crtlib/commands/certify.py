"""``crtlib certify``: from a run to its certificate, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def certify(
    run: Annotated[Path, typer.Argument(help="Folder that crtlib train wrote.")],
    out: Annotated[Path, typer.Option(help="The page; its JSON gets the same name.")],
    audience: Annotated[
        str, typer.Option("--for", help="Whose page: officer, engineer or both.")
    ] = "both",
    name: Annotated[
        str | None, typer.Option(help="Name of the model; default: its folder.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="Evidence to attach: audit.json of crtlib audit.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Evidence to attach: the folder of crtlib report.")
    ] = None,
    copies: Annotated[
        str, typer.Option(help="Rows for a person with so many secrets, or one said so often.")
    ] = "5,20",
    odometer: Annotated[
        Path | None, typer.Option(help="The odometer, if it was moved since.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Write nothing; compare what is there with the run.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Write what a model may give away: one sheet in plain words, every number in tables, and JSON.

    Earlier private runs on the same text, which its odometer lists, are composed with this one.
    Ends with 4 where the certificate is void or, with --verify, where anything differs.

    Example: crtlib certify run --out certificate.html
    """
    from crtlib.checks import whole_numbers
    from crtlib.release import certify

    if verify:
        difference, value = certify.verify(run, out, place=odometer)
    else:
        difference, value = None, certify.write(
            run, out, name=name, audience=audience, audit=audit, report=report, place=odometer,
            copies=whole_numbers("copies", copies), force=force,
        )  # fmt: skip
    verdict = str(value["verdict"])
    if as_json:
        summary = {"schema": "crtlib/certify/1", "ok": difference is None, "id": value["id"]}
        print(json.dumps(summary | {"verdict": verdict, "difference": difference}))
    elif difference:
        print(f"verification failed: {difference}")
    else:
        print(f"{'verified' if verify else out}: {certify.summary(value)}")
    return 4 if difference or verdict == "void" else 0
