"""``crtlib certify``: from a run to its certificate, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def certify(
    run: Annotated[Path, opt("Folder that crtlib train wrote.", "place", argument="RUN")],
    out: Annotated[Path, opt("The page; its JSON gets the same name.", "place")],
    audience: Annotated[str, opt("Whose page: officer, engineer or both.", flag="--for")] = "both",
    name: Annotated[str | None, opt("Name of the model. [its folder]")] = None,
    audit: Annotated[
        Path | None, opt("Evidence to attach: audit.json of crtlib audit.", group="Evidence")
    ] = None,
    report: Annotated[
        Path | None, opt("Evidence to attach: the folder of crtlib report.", group="Evidence")
    ] = None,
    copies: Annotated[
        str, opt("Rows for a person with so many secrets, or one said so often.")
    ] = "5,20",
    require: Annotated[
        list[str] | None,
        opt("A limit, as 'public <= 1%' or 'guess <= 55'; repeatable.", metavar="LIMIT"),
    ] = None,
    odometer: Annotated[Path | None, opt("The odometer, if it was moved since.", "place")] = None,
    verify: Annotated[bool, opt("Write nothing; compare what is there with the run.")] = False,
    force: Annotated[bool, opt("Replace what is there.", "place")] = False,
) -> Answer:
    """Write what a model may give away: one sheet in plain words, every number in tables, and JSON.

    Earlier private runs on the same text, which its odometer lists, are composed with this one.
    Ends with 4 where the certificate is void, where a limit that --require sets is not met or, with
    --verify, where anything differs.

    Example: crtlib certify run --out certificate.html
    """
    from crtlib.checks import whole_numbers
    from crtlib.release import certify

    if verify:
        difference, value = certify.verify(run, out, place=odometer)
        if require:  # other limits than those that were set when it was written
            value = value | {"limits": certify.judged(value, require)}
    else:
        difference, value = None, certify.write(
            run, out, name=name, audience=audience, audit=audit, report=report, place=odometer,
            copies=whole_numbers("copies", copies), require=require or (), force=force,
        )  # fmt: skip
    verdict = str(value["verdict"])
    asked = value.get("limits", [])
    kept = verdict != "void" and all(row["met"] for row in asked)
    facts = {"ok": not difference and kept, "id": value["id"], "verdict": verdict, "limits": asked}
    line = f"{'verified' if verify else out}: {certify.summary(value)}"
    if difference:
        line = f"verification failed: {difference}"
    return Answer(facts | {"difference": difference}, [line])
