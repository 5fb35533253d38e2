"""``crtlib protect``: weights and noise, so that no secret is guessed more than promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt

ACCOUNTING = "Accounting"


def protect(
    corpus: Annotated[Path, opt("Corpus folder or JSONL.", "place", argument="CORPUS")],
    out: Annotated[Path, opt("Folder of the plan.", "place")],
    secrets: Annotated[Path | None, opt("CSV or Parquet user,secret[,kind][,p][,r].")] = None,
    from_policy: Annotated[str | None, opt("Instead: each value that this policy flags.")] = None,
    by: Annotated[
        str, opt("What gets one promise: a value, or all that the values of a user touch.")
    ] = "value",
    unit: Annotated[str, opt("Data point: turn or dialogue.")] = "turn",
    prior: Annotated[float, opt("Chance of a guess without the model, if no column p.")] = 0.001,
    posterior: Annotated[
        float | None, opt("What training may raise it to, if no column r.")
    ] = None,
    steps: Annotated[int | None, opt("Steps of training. [8 passes]")] = None,
    batch_size: Annotated[float | None, opt("Expected size of a Poisson batch. [64]")] = None,
    scale: Annotated[
        list[float] | None,
        opt("C: more keeps more, at more noise; inf keeps all; several: compare."),
    ] = None,
    take: Annotated[
        float | None, opt("Of several scales, the one to write. [most for its noise]")
    ] = None,
    targets: Annotated[
        str, opt("Targets: sqrt (ours) or linear (the paper's).", group=ACCOUNTING)
    ] = "sqrt",
    neighbouring: Annotated[
        str, opt("Relation: reference, add_or_remove or replace.", group=ACCOUNTING)
    ] = "reference",
    force: Annotated[bool, opt("Replace a plan that exists.", "place")] = False,
) -> Answer:
    """Weights of examples, and the noise with which no secret is guessed more than promised.

    C (--scale) is how much of each secret's text may stay: with several the command compares them
    and takes the one that keeps most text for its noise. crtlib train --plan trains with the plan.

    Example: crtlib protect corpus --secrets holders.csv --by user --posterior 0.1 --out plan
    """
    from crtlib.experiments import plans

    made = plans.make(
        corpus,
        out,
        table=secrets,
        policy=from_policy,
        by=by,  # type: ignore[arg-type]  # refused there where it is neither
        unit=unit,
        prior=prior,
        posterior=posterior,
        steps=steps,
        batch_size=batch_size,
        scales=scale or (2.0, 5.0, 10.0, float("inf")),
        take=take,
        targets=targets,
        neighbouring_relation=neighbouring,
        force=force,
    )
    lines = [
        made.text() if made else f"{out}: up to date",
        f"{out}: plan.json, weights.parquet; private: secrets, holders, names, key",
    ]
    return Answer(json.loads((out / "plan.json").read_bytes()), lines)
