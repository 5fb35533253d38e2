"""``crtlib train``: screen, train, attack, promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder, JSONL, or a screened folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, guarantee and measurements.")],
    unit: Annotated[
        str | None, typer.Option(help="Data point: turn or dialogue. [as screened, else turn]")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Of crtlib protect: weights and noise by secret.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="sgd, dedup, dpsgd, selective, crt or crt_sigma0.")
    ] = "crt",
    model: Annotated[str, typer.Option(help="lstm or gpt2.")] = "lstm",
    policy: Annotated[
        str | None,
        typer.Option(help="Redaction policy pi; several, joined by +. [the corpus' own, if any]"),
    ] = None,
    conservative: Annotated[
        str | None, typer.Option(help="Conservative policy pi_c. [as the policy]")
    ] = None,
    gamma: Annotated[float, typer.Option(help="Share of pi's finds to miss on purpose.")] = 0.0,
    epsilon: Annotated[float, typer.Option(help="Target epsilon of DP-SGD.")] = 3.0,
    delta: Annotated[float, typer.Option(help="Target delta.")] = 8e-5,
    neighbouring: Annotated[str, typer.Option(help="add_or_remove or replace.")] = "replace",
    epochs: Annotated[int, typer.Option(help="Epochs.")] = 8,
    init: Annotated[
        str, typer.Option(help="random, or a pre-trained GPT-2: hub id or folder (model gpt2).")
    ] = "random",
    labelled: Annotated[
        int, typer.Option(help="Dialogues whose labels teach the policy tagger; not trained on.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of order, initialisation and canaries.")] = 0,
    canaries: Annotated[int, typer.Option(help="Canaries to plant and attack; 0: none.")] = 0,
    copies: Annotated[int, typer.Option(help="Copies of each canary.")] = 20,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    repeatable_noise: Annotated[
        bool, typer.Option(help="Noise from the seed: for experiments, never for a release.")
    ] = False,
    odometer: Annotated[
        Path | None, typer.Option(help="Where spent runs are entered; default: beside the corpus.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Trainings that saw this text before this one.")] = 1,
) -> None:
    """Screen and train on a corpus; write the model, its guarantee and the canary attack.

    Example: crtlib train dialogues.jsonl --unit turn --method crt --epsilon 3 --out run
    """
    from crtlib.experiments import own, plans

    if plan is not None:
        options = {"model": model, "init": init, "epochs": epochs, "seed": seed, "device": device}
        options |= {"repeatable_noise": repeatable_noise, "odometer": odometer, "progress": True}
        print(plans.train_with(corpus, plan, out=out, **options).promise)
        return
    trained = own.train_on(
        corpus,
        out=out,
        unit=unit,
        method=method,
        model=model,
        policy=policy,
        conservative=conservative,
        gamma=gamma,
        epsilon=epsilon,
        delta=delta,
        neighbouring_relation=neighbouring,
        epochs=epochs,
        init=init,
        labelled=labelled,
        seed=seed,
        canaries=canaries,
        copies=copies,
        device=device,
        repeatable_noise=repeatable_noise,
        odometer=odometer,
        trials=trials,
        progress=True,
    )
    for name, _, item, value in trained.rows:
        if name == "exposure" or name.startswith("test_"):
            print(f"{name:>16} {item or '':>3} {value:.4g}")
    print(trained.promise)
