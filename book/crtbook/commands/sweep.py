"""``crtbook sweep``: run what a figure or table still lacks."""

import shlex
import sys
from pathlib import Path

from confide.commands import WorkerCount
from crtlib.options import CommandResult


def sweep(
    name: str,
    profile: str = "quick",
    set_: tuple[str, ...] = (),
    store: Path = Path("store"),
    workers: WorkerCount = 2,
    executor: str = "processes:",
    device: str = "auto",
    dry_run: bool = False,
    keep_models: bool = True,
    out: Path | None = None,
    force: bool = False,
) -> CommandResult:
    """Run what a figure or table still lacks.

    A sweep that was killed resumes where it stopped.

    Example: crtbook sweep crt --profile quick --set gammas=[0.05] --dry-run

    Files:
        --store: Folder of finished runs.
        --dry-run: Only say what would run, how long it would take, and which data are lacking.
        --keep-models: Keep no trained models in the store.
        --out: Also write the table here (Parquet).
        --force: Replace results that exist.
    Options:
        NAME: Sweep: crt, tuning, authors, start, carriers, axis, leakage, people, abstracts,
            secrets, words, tuned_words, games or screening.
        --profile: Profile: quick, laptop, at_hand, paper, paper_lstm, converged, settled,
            tenth, smollm2 or h100.
        --set NAME=VALUE: A setting, such as seeds=1; repeatable.
    Speed and memory:
        --workers: Number of processes.
        --executor: Where they run: processes:, threads:, dask://HOST:PORT or entry:MODULE:NAME.
        --device: Device: auto, cpu or cuda.
    """
    from crtbook import runner, sweeps, tables
    from crtbook.study import Store
    from crtlib import outputs
    from crtlib.training.devices import device_by_name

    values, runs = sweeps.parse_changes(set_), Store(store)
    studies = sweeps.make_studies(name, profile, values)
    if out:
        outputs.check_output_file(out, force=force)
    device = device_by_name(device)
    changes = [word for change in set_ for word in ("--set", change)]
    plan = runner.plan_sweep(studies, runs)
    facts = {"runs": len(plan.studies), "missing": len(plan.missing), "lacking": plan.lacking}
    if dry_run:
        parts = sweeps.forecast_runs(studies, runs)
        minutes, memory = 60 * parts.hours.sum(), parts.memory.where(parts.missing > 0, 0).max()
        lines = [
            f"runs     {facts['runs']}, of which {facts['missing']} are missing",
            f"time     about {minutes:.2g} min of one core, {minutes / workers:.2g} with {workers}",
            *(f"lacking  {need}" for need in plan.lacking),
            "",
            parts.to_string(index=False, float_format="{:.1f}".format),
        ]
        return CommandResult(facts | {"cpu_seconds": 60 * minutes, "memory_gib": memory}, lines)
    table = runner.sweep(
        studies,
        runs,
        profile=profile,
        workers=workers,
        executor=executor,
        device=device,
        keep_models=keep_models,
        progress=sys.stderr.isatty(),
        command=shlex.join(["crtbook", "sweep", name, "--profile", profile, *changes]),
    )
    if out:
        tables.write_table(table, out)
    facts |= {"store": store, "table": out, "rows": len(table)}
    return CommandResult(facts, [sweeps.format_overview(table)])
