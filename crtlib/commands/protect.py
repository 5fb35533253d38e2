"""``crtlib protect``: weights and noise, so that no secret is guessed more than promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def protect(
    corpus: Annotated[
        Path, typer.Argument(help="Corpus folder or JSONL; or a table example,secret[,p][,r].")
    ],
    secrets: Annotated[
        Path | None, typer.Option(help="CSV or Parquet user,secret[,kind][,p][,r].")
    ] = None,
    from_policy: Annotated[
        str | None, typer.Option(help="Instead: each value that this policy flags.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="What gets one promise: a value, or all that a user's values touch.")
    ] = "value",
    unit: Annotated[str, typer.Option(help="Data point: turn or dialogue.")] = "turn",
    prior: Annotated[
        float | None,
        typer.Option(help="Chance of a guess without the model, if no column p. [0.001]"),
    ] = None,
    posterior: Annotated[
        float | None, typer.Option(help="What training may raise it to, if no column r.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training. [8 passes]")] = None,
    batch_size: Annotated[
        float | None, typer.Option(help="Expected size of a Poisson batch. [64]")
    ] = None,
    scale: Annotated[
        list[float] | None,
        typer.Option(help="C: more keeps more, at more noise; inf keeps all; several: compare."),
    ] = None,
    take: Annotated[
        float | None, typer.Option(help="Of several scales, the one to write. [most for its noise]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to, else the input's name + -plan.")
    ] = None,
    targets: Annotated[str, typer.Option(help="sqrt (ours) or linear (the paper's).")] = "sqrt",
    accounting: Annotated[str, typer.Option(help="kl, or tight (slower, less noise).")] = "kl",
    neighbouring: Annotated[
        str, typer.Option(help="reference, add_or_remove or replace.")
    ] = "reference",
    show_secrets: Annotated[bool, typer.Option(help="Print names instead of numbers.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a plan that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
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
        _table(corpus, place, scale or [5.0], show_secrets, force, **options)
        return
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
    if as_json:
        print((place / "plan.json").read_text(encoding="utf-8"), end="")
        return
    print(made.text() if made else f"{place}: up to date")
    print(f"{place}: plan.json, weights.parquet; private: secrets, holders, names, key")


def _table(
    file: Path, out: Path, scales: list[float], show_secrets: bool, force: bool, **given: Any
) -> None:
    """Plan from a table of pairs, whose names its owner chose."""
    from crtlib import outputs
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
        print(table.to_string(index=False, float_format="{:.4g}".format))
        return
    made = library.plan(*promises, scale=scales[0], **options)
    summary = made.summary() | {"incidence": file.name}
    recipe = {"command": "protect", "options": {**options, "scale": str(scales[0])}}
    recipe |= {"inputs": {"incidence": file}}
    if not outputs.up_to_date(out, **recipe):
        with outputs.staged(out, public=["plan.json"], force=force, **recipe) as part:
            for name, rows in made.tables(held.examples, held.secrets).items():
                save = rows.to_csv if file.suffix == ".csv" else rows.to_parquet
                save(part / f"{name}{file.suffix}", index=False)
            finite = summary | {"scale": made.scale if made.scale < float("inf") else None}
            text = json.dumps(finite, indent=1) + "\n"
            (part / "plan.json").write_text(text, encoding="utf-8")
    for name, value in summary.items():
        print(f"{name:>20}  {value:.6g}" if isinstance(value, float) else f"{name:>20}  {value}")
    print(f"\nbinding, {len(made.binding)} of {len(held.secrets)}:")
    names = held.secrets if show_secrets else None
    tight = given["accounting"] == "tight"
    for said in made.guarantees(made.binding[:5], names=names, tight=tight):
        print(said)
    print(f"\n{out}: weights{file.suffix}, secrets{file.suffix}, plan.json")
