"""``crtlib protect``: weights and noise, so that no secret is guessed more than promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from crtlib.options import Answer, opt


def protect(
    corpus: Annotated[
        Path,
        opt(
            "Corpus folder or JSONL; or a table example,secret[,p][,r].", "place", argument="CORPUS"
        ),
    ],
    secrets: Annotated[Path | None, opt("CSV or Parquet user,secret[,kind][,p][,r].")] = None,
    from_policy: Annotated[str | None, opt("Instead: each value that this policy flags.")] = None,
    by: Annotated[
        str, opt("What gets one promise: a value, or all that the values of a user touch.")
    ] = "value",
    unit: Annotated[str, opt("Data point: turn or dialogue.")] = "turn",
    prior: Annotated[
        float | None, opt("Chance of a guess without the model, if no column p. [0.001]")
    ] = None,
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
    out: Annotated[
        Path | None, opt("Folder to write to. [the input's name + -plan]", "place")
    ] = None,
    targets: Annotated[
        str, opt("Targets: sqrt (ours) or linear (the paper's).", group="Accounting")
    ] = "sqrt",
    accounting: Annotated[
        str, opt("Accounting: kl, or tight (slower, less noise).", group="Accounting")
    ] = "kl",
    neighbouring: Annotated[
        str, opt("Relation: reference, add_or_remove or replace.", group="Accounting")
    ] = "reference",
    show_secrets: Annotated[bool, opt("Print names instead of numbers.", "talk")] = False,
    force: Annotated[bool, opt("Replace a plan that exists.", "place")] = False,
) -> Answer:
    """Weights of examples, and the noise with which no secret is guessed more than promised.

    C (--scale) is how much of each secret's text may stay: with several the command compares them
    and takes the one that keeps most text for its noise. crtlib train --plan trains with the plan.

    Example: crtlib protect corpus --secrets holders.csv --by user --posterior 0.1 --out plan
    """
    options: dict[str, Any] = {"targets": targets, "accounting": accounting}
    options["neighbouring_relation"] = neighbouring
    place = out or corpus.with_name(f"{corpus.name.partition('.')[0]}-plan")
    corpora = corpus.is_dir() or corpus.suffix in (".jsonl", ".gz")
    if not corpora and secrets is None and from_policy is None:
        options |= {"prior": prior, "posterior": posterior, "steps": steps, "batch": batch_size}
        return _table(corpus, place, scale or [5.0], show_secrets, force, **options)
    from crtlib.experiments import plans

    made = plans.make(
        corpus,
        place,
        table=secrets,
        policy=from_policy,
        by=by,  # type: ignore[arg-type]  # refused there where it is neither
        unit=unit,
        prior=0.001 if prior is None else prior,
        posterior=posterior,
        steps=steps,
        batch_size=batch_size,
        scales=scale or (2.0, 5.0, 10.0, float("inf")),
        take=take,
        force=force,
        **options,
    )
    lines = [
        made.text() if made else f"{place}: up to date",
        f"{place}: plan.json, weights.parquet; private: secrets, holders, names, key",
    ]
    return Answer(json.loads((place / "plan.json").read_bytes()), lines)


def _table(
    file: Path, out: Path, scales: list[float], show_secrets: bool, force: bool, **given: Any
) -> Answer:
    """Plan from a table of pairs, whose names its owner chose."""
    from crtlib import files, outputs
    from crtlib.accounting import secrets as library
    from crtlib.accounting.incidence import read
    from crtlib.checks import check

    steps, batch_size = given.pop("steps"), given.pop("batch")
    if steps is None or batch_size is None:
        raise ValueError("--steps, --batch-size: must be given with a table")
    check("steps", steps, steps >= 1, "at least 1")
    held = read(file, prior=given.pop("prior"), posterior=given.pop("posterior"))
    options = {"steps": steps, "batch_size": batch_size, **given}
    promises = (held.matrix, held.prior, held.posterior)
    if len(scales) > 1:
        table = library.sweep(*promises, scales=scales, **options)
        shown = table.to_string(index=False, float_format="{:.4g}".format)
        return Answer({"scales": table.to_dict("records")}, [shown])
    made = library.plan(*promises, scale=scales[0], **options)
    summary = made.summary() | {"incidence": file.name}
    recipe: dict[str, Any] = {"command": "protect", "options": {**options, "scale": str(scales[0])}}
    recipe |= {"inputs": {"incidence": file}}
    if not outputs.up_to_date(out, **recipe):
        with outputs.staged(out, public=["plan.json"], force=force, **recipe) as part:
            for name, rows in made.tables(held.examples, held.secrets).items():
                sheet = file.suffix == ".csv"
                save = rows.map(files.harmless).to_csv if sheet else rows.to_parquet
                save(part / f"{name}{file.suffix}", index=False)
            finite = summary | {"scale": made.scale if made.scale < float("inf") else None}
            text = json.dumps(finite, indent=1) + "\n"
            (part / "plan.json").write_text(text, encoding="utf-8")
    names = held.secrets if show_secrets else None
    tight = given["accounting"] == "tight"
    return Answer(
        summary,
        [
            *(
                f"{name:>20}  {value:.6g}" if isinstance(value, float) else f"{name:>20}  {value}"
                for name, value in summary.items()
            ),
            f"\nbinding, {len(made.binding)} of {len(held.secrets)}:",
            *map(str, made.guarantees(made.binding[:5], names=names, tight=tight)),
            f"\n{out}: weights{file.suffix}, secrets{file.suffix}, plan.json",
        ],
    )
