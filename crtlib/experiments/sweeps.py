"""Sweeps: run the experiments that the store does not hold yet, and return the table of all.

>>> from crtlib.experiments import settings as settings_studies
>>> settings = settings_studies.parameters({"methods": ["sgd"], "models": ["lstm"], "seeds": 1}, "crt")
>>> settings.ablations = []
>>> [e.gamma for e in crt_grid(settings, hyperparameters=lambda method, model, corpus: {})]
[0.0, 0.1, 0.5]
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from scipy.stats import qmc
from tqdm.auto import tqdm

from crtlib.experiments import store as store_studies
from crtlib.experiments import trials as trials_studies
from crtlib.experiments.crt import SIMULATED, Experiment, calibrate
from crtlib.experiments.data import TUNING_SEED


def _leave_with_parent() -> None:
    """End this worker when the sweep is killed; left alone it would wait for work for ever."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _cell(experiment: Experiment, checkpoint: str, kept: str | None, device: str, profile: str):
    torch.set_num_threads(1)  # two processes beat two threads at these sizes
    fitted = trials_studies.restore(experiment, kept) if kept else None
    if fitted is None:
        fitted = trials_studies.fit(experiment, checkpoint=checkpoint, device=device)
        if kept:
            trials_studies.save(fitted, kept)
    rows = trials_studies.measure(experiment, fitted)
    seconds = fitted.run.seconds
    return rows, store_studies.provenance(profile=profile, device=device, seconds=seconds)


def sweep(
    experiments: Iterable[Experiment],
    store: store_studies.Store,
    *,
    profile: str = "custom",
    workers: int = 2,
    executor: Executor | None = None,
    device: str = "cpu",
    keep_models: bool = True,
    progress: bool = True,
) -> pd.DataFrame:
    """Run what the store does not hold yet, then return the table of all of ``experiments``.

    Each finished run is written atomically by this process, whatever the executor, so a kill
    loses at most the runs in flight, and those go on from their checkpoints. ``keep_models``
    keeps what was trained in the store, so that a new measurement needs no training. Any
    ``concurrent.futures.Executor`` serves (a Dask client's too); by default ``workers`` processes.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}: torch finds no GPU here, must be cpu")
    wanted = {e.key: e for e in map(calibrate, experiments)}
    with store.alone():
        missing = {key: e for key, e in wanted.items() if not store.has(key)}
        if missing:
            _run(missing, store, profile, workers, executor, device, keep_models, progress)
    return store.table(list(wanted))


def _run(missing, store, profile, workers, executor, device, keep_models, progress) -> None:
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
            kept = str(store.model(key)) if keep_models else None
            futures[executor.submit(_cell, e, checkpoint, kept, device, profile)] = key
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


def _cost(e: Experiment) -> float:
    """Rough relative cost, so that the long runs start first."""
    return e.dialogues * e.epochs * e.hidden * e.layers * (3 if e.model == "gpt2" else 1)


SEARCHED = {
    "learning_rate": lambda u, _: float(f"{10 ** (-2.7 + 1.2 * u):.2g}"),
    "batch_size": lambda u, _: (16, 32, 64)[int(3 * u)],
    "pub_passes": lambda u, passes: passes[int(len(passes) * u)],
    "private_learning_rate": lambda u, _: float(f"{10 ** (-2.5 + 1.5 * u):.2g}"),
    "sampling_probability": lambda u, _: (0.05, 0.1, 0.2, 0.4)[int(4 * u)],
}
"""What is searched, and its value at a uniform ``u`` of [0, 1)."""
PRIVATE = ("private_learning_rate", "sampling_probability")
READ = {
    "sgd": ("learning_rate", "batch_size"),
    "dedup": ("learning_rate", "batch_size"),
    "dpsgd": PRIVATE,
    "selective": ("learning_rate", "batch_size", "private_learning_rate"),
    "crt": tuple(SEARCHED),
    "crt_sigma0": tuple(SEARCHED),
}
"""What each method reads of it."""


def crt_grid(
    settings: SimpleNamespace, hyperparameters: Callable[[str, str, str], dict] | None = None
) -> list[Experiment]:
    """The runs of Figures 2 to 5: methods at ``gammas``, ablations at ``ablation_gammas``, all
    seeds, on each corpus.

    ``hyperparameters(method, model, corpus)`` are by default those of the recorded search.
    """
    chosen = hyperparameters or tuned
    made = []
    for corpus, model, methods_, ablations in _cells(settings):
        grid = [(m, g) for m in methods_ for g in settings.gammas]
        grid += [(m, g) for m in ablations for g in settings.ablation_gammas]
        made += [
            _experiment(settings, corpus, method, model, gamma, seed, chosen(method, model, corpus))
            for method, gamma in grid
            for seed in range(settings.seeds)
        ]
    return made


CHOICES = {
    "as tuned": {},
    "one public pass": {"pub_passes": 1},
    "ten public passes": {"pub_passes": 10},
    "duplicates kept as <MASK>": {"duplicates": "mask"},
    "dedup where pi_c speaks": {"dedup": "flagged"},
    "dialogues as points": {"unit": "dialogue"},
}
"""What CRT leaves open, one choice changed at a time."""


def choices_grid(
    settings: SimpleNamespace, hyperparameters: Callable[[str, str, str], dict] | None = None
) -> dict[str, list[Experiment]]:
    """CRT at one gamma with each of ``CHOICES``, a few seeds: LSTM on CustomerSim."""
    chosen = (hyperparameters or tuned)("crt", "lstm", SIMULATED)
    return {
        name: [
            _experiment(settings, SIMULATED, "crt", "lstm", settings.gamma, seed, chosen | change)
            for seed in range(settings.choice_seeds)
        ]
        for name, change in CHOICES.items()
    }


def public_start_grid(
    settings: SimpleNamespace, hyperparameters: Callable[[str, str, str], dict] | None = None
) -> list[Experiment]:
    """GPT-2 on CustomerSim from random weights, and from weights trained on public dialogues.

    ``hyperparameters(method, model, corpus)``: by default each start has those of its own search.
    """
    return [
        _experiment(
            settings,
            SIMULATED,
            method,
            "gpt2",
            settings.gamma,
            seed,
            (hyperparameters or partial(tuned, init=init))(method, "gpt2", SIMULATED) | start,
        )
        for method in STARTED
        for init, start in (("random", {}), (settings.public, _start(settings)))
        for seed in range(settings.seeds)
    ]


STARTED = ("sgd", "dpsgd", "crt")
"""The methods that are also run from a public start."""
GENTLY = 0.2
"""Learning rates from a public start, as a share of those that are drawn for random weights."""


def _start(settings: SimpleNamespace) -> dict:
    return {"init": settings.public, "init_epochs": settings.public_epochs}


def tuning_grid(settings: SimpleNamespace) -> list[Experiment]:
    """The recorded search: a corpus' ``trials`` draws for every method and model, the same for all.

    Each method reads of a draw only what it uses, at one gamma and on a seed of its own; the
    choice is by perplexity on validation texts (:func:`tuned`).
    """
    made = []
    for corpus, model, methods_, ablations in _cells(settings):
        data = settings.data[corpus]
        draws = _draws(data["trials"], data["pub_passes"])
        made += [
            _experiment(
                settings,
                corpus,
                method,
                model,
                settings.gamma,
                TUNING_SEED,
                {name: drawn[name] for name in READ[method]},
            )
            for method in [*methods_, *ablations]
            for drawn in draws
        ]
    if SIMULATED in settings.corpora and "gpt2" in settings.models:
        data = settings.data[SIMULATED]
        made += [
            _experiment(
                settings,
                SIMULATED,
                method,
                "gpt2",
                settings.gamma,
                TUNING_SEED,
                {name: drawn[name] for name in READ[method]} | _start(settings),
            )
            for method in STARTED
            for drawn in _draws(settings.public_trials, data["pub_passes"], rates=GENTLY)
        ]
    return made


def _cells(settings: SimpleNamespace) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Corpus, model, methods, ablations: what the settings ask for and the corpus allows."""
    for corpus in settings.corpora:
        allowed = settings.data[corpus]
        for model in settings.models:
            if model in allowed["models"]:
                allows = set(allowed["methods"])
                if model != "lstm":
                    allows.discard("selective")  # it hands a noisy hidden state on
                methods_ = [m for m in settings.methods if m in allows]
                yield (
                    corpus,
                    model,
                    methods_,
                    [m for m in settings.ablations if m in allowed["ablations"]],
                )


def _draws(trials: int, passes: list[int], *, rates: float = 1.0) -> list[dict]:
    """Draws of a Latin hypercube, six at a time, so that a longer search holds the shorter one;
    learning rates times ``rates``."""
    cubes = [
        qmc.LatinHypercube(len(SEARCHED), rng=np.random.default_rng(seed)).random(6)
        for seed in range(11, 11 + -(-trials // 6))
    ]
    drawn = [
        {name: value(u, passes) for u, (name, value) in zip(row, SEARCHED.items(), strict=True)}
        for row in np.concatenate(cubes)[:trials]
    ]
    return [
        {n: float(f"{rates * v:.2g}") if n.endswith("rate") else v for n, v in one.items()}
        for one in drawn
    ]


def _experiment(settings, corpus, method, model, gamma, seed, hyperparameters) -> Experiment:
    shape = settings.shapes[model]
    data = {k: v for k, v in settings.data[corpus].items() if k in Experiment.__dataclass_fields__}
    given = data | shape | {"epochs": shape["epochs"][method]} | hyperparameters
    return Experiment(
        corpus=corpus,
        method=method,
        model=model,
        gamma=float(gamma),
        seed=seed,
        dialogues=settings.dialogues,
        epsilon=settings.epsilon,
        delta=settings.delta,
        **given,
    )


def tuned(method: str, model: str, corpus: str = SIMULATED, *, init: str = "random") -> dict:
    """What the recorded search chose: the trial of least validation perplexity at its last epoch.

    Perplexity is over tokens that are neither ``<MASK>`` nor part of a secret, the only one that
    compares a method trained on raw text with the others. A corpus that the search did not cover
    takes what it chose on CustomerSim.
    """
    table = store_studies.recorded("tuning")
    table = table[table.metric == "valid_ppl_words"]
    table = table[(table.method == method) & (table.model == model) & (table.init == init)]
    if table.empty:
        raise ValueError(
            f"method={method!r}, model={model!r}, init={init!r}: not in the recorded search"
        )
    here = table[table.corpus == corpus]
    table = here if len(here) else table[table.corpus == SIMULATED]
    best = table[table.epoch == table.epoch.max()].sort_values("value").iloc[0]
    return {name: best[name].item() for name in READ[method]}


GRIDS = {"crt": crt_grid, "tuning": tuning_grid}
"""The sweeps that the command line knows, by the profile's section they read."""
