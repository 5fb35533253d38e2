"""Sweeps: run the experiments that the store does not hold yet, and return the table of all.

>>> from crtlib import profiles
>>> settings = profiles.parameters({"methods": ["sgd"], "models": ["lstm"], "seeds": 1}, "canary")
>>> settings.ablations = []
>>> [e.gamma for e in canary_grid(settings, hyperparameters=lambda method, model: {})]
[0.0, 0.1, 0.5]
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from crtlib import results, trials
from crtlib.experiments import Experiment, calibrate


def _leave_with_parent() -> None:
    """End this worker when the sweep is killed; left alone it would wait for work for ever."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _cell(experiment: Experiment, checkpoint: str | None, device: str, profile: str):
    torch.set_num_threads(1)  # two processes beat two threads at these sizes
    fitted = trials.fit(experiment, checkpoint=checkpoint, device=device)
    rows = trials.measure(experiment, fitted)
    seconds = fitted.run.seconds
    return rows, results.provenance(profile=profile, device=device, seconds=seconds)


def sweep(
    experiments: Iterable[Experiment],
    store: results.Store,
    *,
    profile: str = "custom",
    workers: int = 2,
    executor: Executor | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> pd.DataFrame:
    """Run what the store does not hold yet, then return the table of all of ``experiments``.

    Each finished run is written atomically by this process, whatever the executor, so a kill
    loses at most the runs in flight, and those go on from their checkpoints. Any
    ``concurrent.futures.Executor`` serves (a Dask client's too); by default ``workers`` processes.
    """
    wanted = {e.key: e for e in map(calibrate, experiments)}
    missing = {key: e for key, e in wanted.items() if not store.has(key)}
    if missing:
        own = None
        if executor is None:
            context = multiprocessing.get_context("spawn")
            executor = own = ProcessPoolExecutor(
                workers, mp_context=context, initializer=_leave_with_parent
            )
        bar = tqdm(total=len(missing), desc="runs", unit="run", disable=not progress)
        try:
            futures = {}
            for key, e in sorted(missing.items(), key=lambda item: -_cost(item[1])):
                checkpoint = str(store.checkpoint(key))
                futures[executor.submit(_cell, e, checkpoint, device, profile)] = key
            for future in as_completed(futures):
                key = futures[future]
                rows, provenance = future.result()
                store.write(key, asdict(missing[key]), provenance, rows)
                store.checkpoint(key).unlink(missing_ok=True)
                bar.update()
        finally:
            bar.close()
            if own:
                own.shutdown(cancel_futures=True)
    return store.table(list(wanted))


def _cost(e: Experiment) -> float:
    """Rough relative cost, so that the long runs start first."""
    return e.dialogues * e.epochs * e.hidden * e.layers * (3 if e.model == "gpt2" else 1)


# --- grids --------------------------------------------------------------------------------------

SEARCHED = ("learning_rate", "batch_size", "pub_passes")
SEARCHED_PRIVATE = ("private_learning_rate", "sampling_probability")
TUNING_SEED = 1000
"""Corpus, canaries and initialisation of the search: a seed that no figure uses."""


def canary_grid(
    settings: SimpleNamespace, hyperparameters: Callable[[str, str], dict] | None = None
) -> list[Experiment]:
    """The runs of Figure 3: methods at ``gammas``, ablations at ``ablation_gammas``, all seeds.

    ``hyperparameters(method, model)`` are by default those of the recorded search.
    """
    chosen = hyperparameters or tuned
    grid = [(m, g) for m in settings.methods for g in settings.gammas]
    grid += [(m, g) for m in settings.ablations for g in settings.ablation_gammas]
    return [
        _experiment(settings, method, model, gamma, seed, chosen(method, model))
        for model in settings.models
        for method, gamma in grid
        for seed in range(settings.seeds)
    ]


def tuning_grid(settings: SimpleNamespace) -> list[Experiment]:
    """The recorded search: ``trials`` random draws for every method and model, the same number.

    Each method draws only what it reads, from the same ranges, at one gamma and on a seed of its
    own; the choice is by perplexity on validation texts (:func:`tuned`).
    """
    methods_ = [*settings.methods, *settings.ablations]
    return [
        _experiment(settings, method, model, settings.gamma, TUNING_SEED, _draw(method, trial))
        for model in settings.models
        for method in methods_
        for trial in range(settings.trials)
    ]


def _draw(method: str, trial: int) -> dict:
    rng = np.random.default_rng([trial, 11])  # the same draws for every method
    draw = {
        "learning_rate": float(f"{10 ** rng.uniform(-2.7, -1.5):.2g}"),
        "batch_size": int(rng.choice([16, 32, 64])),
        "private_learning_rate": float(f"{10 ** rng.uniform(-2.7, -1.5):.2g}"),
        "sampling_probability": float(rng.choice([0.05, 0.1, 0.2, 0.4])),
        "pub_passes": int(rng.choice([1, 3, 10])),
    }
    unread = {"sgd": (*SEARCHED_PRIVATE, "pub_passes"), "dpsgd": SEARCHED}
    unread["dedup"] = unread["sgd"]
    return {name: value for name, value in draw.items() if name not in unread.get(method, ())}


def _experiment(settings, method, model, gamma, seed, hyperparameters) -> Experiment:
    epochs = settings.shapes[model]["epochs"]
    return Experiment(
        method=method,
        model=model,
        gamma=float(gamma),
        seed=seed,
        dialogues=settings.dialogues,
        epsilon=settings.epsilon,
        delta=settings.delta,
        **settings.shapes[model] | {"epochs": epochs[method]},
        **hyperparameters,
    )


def tuned(method: str, model: str) -> dict:
    """What the recorded search chose: the trial of least validation perplexity at its last epoch.

    Perplexity is over tokens that are neither ``<MASK>`` nor part of a secret, the only one that
    compares a method trained on raw text with the others.
    """
    table = results.recorded("tuning")
    table = table[(table.method == method) & (table.model == model)]
    table = table[table.metric == "valid_ppl_words"]
    if table.empty:
        raise ValueError(f"method={method!r}, model={model!r}: not in the recorded search")
    best = table[table.epoch == table.epoch.max()].sort_values("value").iloc[0]
    names = (*SEARCHED, *SEARCHED_PRIVATE)
    read = _draw(method, 0)
    return {n: best[n].item() for n in names if n in read}


GRIDS = {"canary": canary_grid, "tuning": tuning_grid}
"""The sweeps that the command line knows, by the profile's section they read."""
