"""``crtlib protect``: weights and noise, so that no secret is guessed more than promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def protect(
    incidence: Annotated[Path, typer.Argument(help="CSV or Parquet: example,secret[,p][,r].")],
    steps: Annotated[int, typer.Option(help="Steps of training.")],
    batch_size: Annotated[float, typer.Option(help="Expected size of a Poisson batch.")],
    prior: Annotated[
        float | None, typer.Option(help="Chance of a guess without the model, if no column p.")
    ] = None,
    posterior: Annotated[
        float | None, typer.Option(help="What training may raise it to, if no column r.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to, else that of the file's name + -plan.")
    ] = None,
    targets: Annotated[str, typer.Option(help="sqrt (ours) or linear (the paper's).")] = "sqrt",
    scale: Annotated[
        list[float],
        typer.Option(help="C: more keeps more, at more noise; inf keeps all; several: compare."),
    ] = (5.0,),
    accounting: Annotated[str, typer.Option(help="kl, or tight (slower, less noise).")] = "kl",
    mode: Annotated[str, typer.Option(help="reference, symmetric or replace.")] = "reference",
    show_secrets: Annotated[bool, typer.Option(help="Print names instead of numbers.")] = False,
) -> None:
    """Weights of examples, and the noise with which no secret is guessed more than promised."""
    from crtlib import files
    from crtlib.accounting import secrets as secrets_module
    from crtlib.accounting.incidence import read
    from crtlib.accounting.secrets import plan
    from crtlib.checks import check

    check("steps", steps, steps >= 1, "at least 1")
    held = read(incidence, prior=prior, posterior=posterior)
    given = (held.matrix, held.prior, held.posterior)
    options = {"steps": steps, "batch_size": batch_size, "targets": targets}
    options |= {"accounting": accounting, "mode": mode}
    if len(scale) > 1:
        table = secrets_module.sweep(*given, scales=scale, **options)
        print(table.to_string(index=False, float_format="{:.4g}".format))
        return
    made = plan(*given, scale=scale[0], **options)
    summary = made.summary() | {"incidence": incidence.name}
    out = out or incidence.with_name(f"{incidence.stem}-plan")
    for name, table in made.tables(held.examples, held.secrets).items():
        with files.replacing(out / f"{name}{incidence.suffix}") as part:
            save = table.to_csv if incidence.suffix == ".csv" else table.to_parquet
            save(part, index=False)
    finite = summary | {"scale": made.scale if made.scale < float("inf") else None}  # for JSON
    text = json.dumps(finite, indent=1)
    files.write_text(out / "plan.json", text + "\n")
    for name, value in summary.items():
        print(f"{name:>20}  {value:.6g}" if isinstance(value, float) else f"{name:>20}  {value}")
    print(f"\nbinding, {len(made.binding)} of {len(held.secrets)}:")
    names = held.secrets if show_secrets else None
    tight = accounting == "tight"
    for said in made.guarantees(made.binding[:5], names=names, tight=tight):
        print(said)
    print(f"\n{out}: weights{incidence.suffix}, secrets{incidence.suffix}, plan.json")
