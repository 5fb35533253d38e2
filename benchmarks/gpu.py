"""Everything to do in the hour when a GPU is there, in order of value: one command.

    python benchmarks/gpu.py --minutes 9 [--json gpu.json] [--store store]
    python benchmarks/gpu.py --rehearse          # on a CPU, at a hundredth of the size

1. **Engines.** Steps of GPT-2 (124 M), SmolLM2 (135 M, with LoRA and whole) and a Llama shape of
   1 B with LoRA, all of random weights, at 64 to 4,096 tokens, under bfloat16 autocast and in
   float32: ``natural`` (forward and backward of transformers), ``ours`` (clipped, noise of a secret
   key as ``crtlib train`` draws it; ``ours-noiseless`` without) and Opacus' two modes where it can
   be imported. Each step reads as many tokens.
2. **Phases.** On a CPU and on the GPU the same words of the cipher, bit for bit, and the same
   clipped sums but for rounding; the same weights, bit for bit, of two trainings on the GPU.
3. **The deciding runs**: the sweeps of CRT on SmolLM2 and in the size of the paper. A sweep that is
   stopped goes on where it was, from its store.

The table is written after every row. What fails is a row with the name of its error, and what
comes after it runs; a rehearsal then ends with 1. The engines may begin rows in the first
six tenths of the time, the rest in all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dp_step
import torch
from torch import nn

from crtlib import files
from crtlib.draws import seeded_torch_rng
from crtlib.models.construction import build_model
from crtlib.models.interface import unwrap_model
from crtlib.models.pretrained import with_lora
from crtlib.models.specs import ModelSpec
from crtlib.training import clipping, loop, phases
from crtlib.training.noise import chacha20_words

TIMES = (64, 512, 1024, 4096)
TOKENS = 2**14  # of a step, padding included
STEPS, SECONDS = 10, 4.0  # of a cell, at most; after two that warm up
LLAMA = {
    "smollm2": {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
                "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    "llama-1b": {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
                 "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
}  # fmt: skip
MODELS = ("gpt2", "smollm2-lora", "llama-1b-lora", "smollm2")
ENGINES = 0.6  # the share of the time in which they begin a row
SWEEPS = ("smollm2", "paper_lstm", "paper")
Row = dict[str, object]


@dataclass(frozen=True)
class Size:
    """What a rehearsal divides the widths and tables by, its lengths, and how many layers stay."""

    by: int = 1
    times: tuple[int, ...] = TIMES
    tokens: int = TOKENS
    layers: int | None = None


SMALL = Size(by=64, times=(8, 16, 32, 64), tokens=128, layers=2)


def gpt2(vocabulary: int, time_: int, size: Size) -> ModelSpec:
    """The shape of GPT-2 small, which reads at least so many tokens."""
    return ModelSpec("gpt2", vocabulary, hidden=768 // size.by, layers=size.layers or 12, heads=12,
                     context=max(1024, time_))  # fmt: skip


def model_of(name: str, time_: int, device: str, size: Size) -> nn.Module:
    """A model of random weights in the shape of ``name``, with adapters where it ends in -lora."""
    import transformers

    kind = name.removesuffix("-lora")
    if kind == "gpt2":
        model = build_model(gpt2(50257 // size.by, time_, size), seed=0)
    else:
        shape = dict(LLAMA[kind])
        if size.by > 1:
            shape = {key: max(3, value // size.by) for key, value in shape.items()}
            shape |= {"hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 1}
        shape["num_hidden_layers"] = size.layers or shape["num_hidden_layers"]
        ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        config = transformers.LlamaConfig(
            **shape, **ids, tie_word_embeddings=True, max_position_embeddings=time_, use_cache=False
        )
        with seeded_torch_rng(0), torch.device(device):
            model = transformers.LlamaForCausalLM(config)
    return with_lora(model, 16, seed=0) if name.endswith("-lora") else model


def stepper(
    engine: str, name: str, time_: int, low: bool, device: str, size: Size
) -> Callable[[], None]:
    """A function that makes one step."""
    model = model_of(name, time_, device, size)
    vocabulary = unwrap_model(model).config.vocab_size
    tokens = torch.randint(0, vocabulary, (max(1, size.tokens // time_), time_ + 1)).to(device)
    if engine.startswith("opacus"):
        return dp_step.opacus_stepper(gpt2(vocabulary, time_, size), engine, tokens, low)
    return dp_step.step_of(model, engine, tokens, low)


def cell(engine: str, name: str, time_: int, low: bool, device: str, size: Size) -> Row:
    """Seconds of a step, tokens a second, and the most memory, which on a CPU nobody asks."""
    step = stepper(engine, name, time_, low, device, size)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    taken: list[float] = []
    while len(taken) < STEPS and sum(taken) < SECONDS:
        taken.append(dp_step.timed(step, device))
    seconds = statistics.median(taken)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else None
    tokens = max(1, size.tokens // time_) * time_
    return {"seconds": seconds, "tokens_a_second": round(tokens / seconds), "peak_gib": peak,
            "steps": len(taken)}  # fmt: skip


def phases_on(device: str) -> Iterator[Row]:
    """What has to be the same on a CPU and on ``device``, or in two trainings on it."""
    key = bytes(range(32))
    here, there = (chacha20_words(key, 1000, torch.device(d)).cpu() for d in ("cpu", device))
    yield {"check": "words of the cipher", "equal": torch.equal(here, there)}
    spec = ModelSpec("gpt2", 50, hidden=16, layers=2, heads=2, context=16)
    points = [[1 + (i * k) % 49 for k in range(3 + i % 9)] for i in range(40)]
    phase = phases.PrivatePhase(1, 0.2, 5, 1.0, 0.1, 8.0, 0.01)
    sums = []
    for where in ("cpu", device):
        model = build_model(spec, seed=0).to(where)
        for tokens, lengths in phases.collate_micro_batches(points, range(40), torch.device(where)):
            clipping.add_clipped_gradients(model, tokens, lengths, clip_norm=0.1)
        sums.append(torch.cat([p.grad.flatten().cpu() for p in model.parameters()]))
    apart = float((sums[0] - sums[1]).norm() / sums[0].norm())
    yield {"check": "clipped sums", "apart": apart, "equal": apart < 1e-4}
    trained = []
    for _ in range(2):
        model = build_model(spec, seed=0).to(device)
        loop.train(model, [phase], {"public": [], "private": points}, seed=0)
        trained.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    yield {"check": "two trainings", "equal": torch.equal(*trained)}


def checked(device: str) -> Row:
    """All of them, and an error where any is not as it has to be."""
    checks = list(phases_on(device))
    apart = [check["check"] for check in checks if not check["equal"]]
    return {"checks": checks} | ({"error": f"not equal: {apart}"} if apart else {})


def sweep(profile: str, device: str, store: str, seconds: float, rehearsed: bool) -> Row:
    """One of the deciding runs; a rehearsal says only what it would run."""
    command = [sys.executable, "-m", "crtbook", "sweep", "crt", "--profile", profile]
    command += ["--device", device, "--store", store, "--quiet"]
    command += ["--dry-run"] if rehearsed else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # its store keeps what is finished
            return {"ended": "out of time"}
    if process.returncode:
        raise RuntimeError(out.decode()[-300:])
    return {"ended": "whole"}


def table(device: str, size: Size, store: str, left: Callable[[], float]) -> Iterator[tuple]:
    """What identifies each row, and what measures it, in order of value."""
    rehearsed = size.by > 1
    engines = ["natural", "ours", "ours-noiseless"]
    opacus = ["opacus-hooks", "opacus-ghost"] if importlib.util.find_spec("opacus") else []
    for name, low, time_ in itertools.product(MODELS, (True, False), size.times):
        for engine in engines + (opacus if name == "gpt2" else []):
            what = {"model": name, "dtype": "bf16" if low else "fp32", "time": time_,
                    "engine": engine}  # fmt: skip
            yield what, partial(cell, engine, name, time_, low, device, size)
    yield {"part": "phases"}, partial(checked, device)
    for profile in SWEEPS:
        yield (
            {"sweep": profile},
            lambda p=profile: sweep(p, device, store, max(1.0, left()), rehearsed),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="after them no row begins")
    parser.add_argument("--rehearse", action="store_true", help="small, and on a CPU")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="the table")
    parser.add_argument("--store", default="store", help="where the sweeps keep their runs")
    args = parser.parse_args()
    if not (args.rehearse or torch.cuda.is_available()):
        parser.exit(2, "gpu.py: torch finds no GPU; --rehearse runs on a CPU\n")
    device, size = ("cpu", SMALL) if args.rehearse else ("cuda", Size())
    start, seconds = time.monotonic(), 60 * args.minutes
    end = start + seconds
    where, rows = dp_step.machine(device), []
    for what, measure in table(device, size, args.store, lambda: end - time.monotonic()):
        if time.monotonic() > (start + ENGINES * seconds if "engine" in what else end):
            rows.append(what | {"error": "out of time"})
        else:
            try:
                rows.append(what | measure())
            except Exception as error:
                rows.append(what | {"error": f"{type(error).__name__}: {str(error)[:300]}"})
            if device != "cpu":
                with contextlib.suppress(RuntimeError):
                    torch.cuda.empty_cache()
            print(json.dumps(rows[-1]), flush=True)
        files.write_text(args.json, json.dumps(where | {"rows": rows}, indent=1) + "\n")
    sys.exit(args.rehearse and any("error" in row for row in rows))


if __name__ == "__main__":
    main()
