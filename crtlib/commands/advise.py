"""``crtlib advise``: from limits back to a plan that meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def advise(
    corpus: Annotated[Path, opt("Corpus folder or JSONL.", "place", argument="CORPUS")],
    labels: Annotated[Path, opt("Folder of crtlib label, read.")],
    require: Annotated[
        list[str] | None,
        opt("A limit, as 'public <= 1%' or 'guess <= 55'; repeatable.", metavar="LIMIT"),
    ] = None,
    policy: Annotated[
        list[str] | None,
        opt("Redaction policy to try; repeatable. [the corpus' own, if any]"),
    ] = None,
    conservative: Annotated[
        list[str] | None,
        opt("Conservative policy to try with each; repeatable. [cautious and everything]"),
    ] = None,
    unit: Annotated[
        list[str] | None, opt("Data point to try: turn, dialogue or user; repeatable. [turn]")
    ] = None,
    hours: Annotated[float, opt("Hours that people can still read.", ge=0)] = 0.0,
    epochs: Annotated[int | None, opt("Passes over the points, as of crtlib train.", ge=1)] = None,
    init: Annotated[str | None, opt("Where the weights start, as of crtlib train.")] = None,
    out: Annotated[
        Path | None, opt("Page to write, with the guess at each epsilon as a picture.", "place")
    ] = None,
    force: Annotated[bool, opt("Replace the page that is there.", "place")] = False,
) -> Answer:
    """Say which policies and how much noise meet your limits, what that costs, or what is missing.

    Rates are counted on labels, never assumed; each pair of policies that is tried widens the
    bounds of all a little, and the certificate of the plan will say the same. --out is a private
    page (0600). Ends with 4 where nothing meets the limits.

    Example: crtlib advise corpus --labels labels --require "public <= 1%" --require "guess <= 55"
    """
    from crtlib import files, outputs
    from crtlib.experiments import advise as library

    if out:
        outputs.check_file(out, inputs=(corpus, labels), force=force)
    advice = library.advise(
        corpus,
        labels,
        require or (),
        policies=policy or (),
        conservative=conservative or ("cautious", "everything"),
        units=unit or ("turn",),
        hours=hours,
        epochs=epochs,
        init=init,
    )
    if out:
        files.write_text(out, advice.page(), mode=outputs.PRIVATE)
    return Answer(advice.json(), [advice.text()])
