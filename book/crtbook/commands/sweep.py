"""``crtbook sweep``: run what a figure or table still lacks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from crtlib.commands import Force


def sweep(
    name: Annotated[
        str,
        typer.Argument(
            help="crt, tuning, authors, start, carriers, axis, leakage, secrets, games, screening."
        ),
    ],
    profile: Annotated[
        str, typer.Option(help="quick, laptop, paper, paper_lstm or smollm2.")
    ] = "quick",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as seeds=1; repeatable."),
    ] = None,
    store: Annotated[
        str,
        typer.Option(help="Folder of finished runs, or a URL: s3://bucket/prefix, gs://, abfs://."),
    ] = "store",
    workers: Annotated[int, typer.Option(help="Processes.", min=1, max=1024)] = 2,
    executor: Annotated[
        str,
        typer.Option(help="processes:, threads:, dask://HOST:PORT or entry:MODULE:NAME."),
    ] = "processes:",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, how long, what lacks.")
    ] = False,
    keep_models: Annotated[bool, typer.Option(help="Keep the trained models in the store.")] = True,
    out: Annotated[Path | None, typer.Option(help="Also write the table here (Parquet).")] = None,
    force: Force = False,
) -> dict[str, Any]:
    """Run what a figure or table still lacks. A killed sweep goes on where it was.

    Example: crtbook sweep crt --profile quick --set gammas=[0.05] --dry-run
    """
    from crtbook import spine, sweeps, tables
    from crtbook.store import Store
    from crtlib import outputs
    from crtlib.training.devices import device_by_name

    values, runs = sweeps.pairs(changes or ()), Store(store)
    if runs.note:
        print(runs.note, file=sys.stderr)
    studies = sweeps.studies(name, profile, values)
    if out:
        outputs.check_file(out, force=force)
    device = device_by_name(device)
    plan = spine.plan(studies, runs)
    facts = {"runs": len(plan.studies), "missing": len(plan.missing), "lacking": plan.lacking}
    if dry_run:
        parts = sweeps.forecast(profile, runs, [name], values)
        print(plan.summary(workers), "", sep="\n")
        print(parts.to_string(index=False, float_format="{:.1f}".format))
        return facts | {"cpu_seconds": plan.cpu_seconds, "memory_gib": plan.memory}
    table = spine.sweep(
        studies,
        runs,
        profile=profile,
        workers=workers,
        executor=executor,
        device=device,
        keep_models=keep_models,
        progress=sys.stderr.isatty(),
    )
    if out:
        tables.record(table, out)
    print(sweeps.overview(table))
    return facts | {"store": store, "table": out, "rows": len(table)}
