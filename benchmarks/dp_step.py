"""Price of one step of DP-SGD: this library and Opacus, against the ordinary step.

    python benchmarks/dp_step.py [--quick] [--json FILE] [--models lstm-2k ...] [--device cuda]
    python benchmarks/dp_step.py --models llama-lora-256 --engines ours --turns-only

A step is forward, backward, clipping, noise and SGD update on one batch. All engines of a model run
in one process, in turn; a ratio compares steps of the same round. On one CPU thread the clock is
that of the process, so that other work on the machine counts less. Peak memory is that of a fresh
process for each engine, over what it held before the model was built.

Engines: ``natural`` (``nn.LSTM``, or transformers' GPT-2 with the activation in one piece, and
``F.cross_entropy``), ``natural-chunked`` (the same, head and loss in pieces of examples, as one
writes it who watches memory), ``natural-bf16`` (``natural`` under autocast), ``kernels`` (ours
without privacy), ``ours`` (noise of a secret key, as ``crtlib train`` draws it), ``ours-seeded``
(noise that repeats, as the sweeps draw it), and Opacus' two modes: ``hooks`` keeps every example's
gradient, ``ghost`` runs two backward passes and refuses tied weights, so there the GPT-2 models are
untied. ``fast-dp`` is fast-differential-privacy (Bu et al. 2023), where it is installed; a layer
that it does not know keeps its weights there, without a word. An engine that cannot take a step of
a model has no row; a line of stderr says why.
Those that end in ``-malloc`` take turns in a fresh process whose allocator keeps what is freed;
their ratio is over ``natural`` in another fresh one. ``over_best`` is over the faster one of
``natural`` and ``natural-chunked`` of the same process and round. ``share`` is that of the
machine's matrix products: the time of the step's multiplications at the speed of one large
product, over the time of the step.

Small steps are measured for as long as large ones: more rounds, so that a median means something.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtbook import tables
from crtbook.runner import MALLOC
from crtlib import files
from crtlib.models import interface
from crtlib.models.construction import build_model
from crtlib.models.pretrained import with_lora
from crtlib.models.recurrent import Lstm
from crtlib.models.specs import ModelSpec
from crtlib.torch_random import seeded_torch_rng
from crtlib.training import clipping
from crtlib.training.noise import SECURE, add_noise
from crtlib.version import __version__


@dataclass(frozen=True)
class LlamaShape:
    """A Llama of random weights; with adapters of a rank on all linear layers, which alone learn
    then."""

    context: int
    rank: int = 0
    vocab_size: int = 4_000
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    intermediate: int = 688
    recurrent = False

    def build(self) -> nn.Module:
        import transformers

        ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        config = transformers.LlamaConfig(
            vocab_size=self.vocab_size, hidden_size=self.hidden, num_hidden_layers=self.layers,
            intermediate_size=self.intermediate, num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads, max_position_embeddings=self.context,
            tie_word_embeddings=False, use_cache=False, **ids,
        )  # fmt: skip
        with seeded_torch_rng(0):
            model = transformers.LlamaForCausalLM(config)
        return with_lora(model, self.rank, seed=0) if self.rank else model


Shape = ModelSpec | LlamaShape
MODELS: dict[str, tuple[Shape, int, int]] = (
    {  # shape, tokens of an example, examples
        "lstm-10k": (ModelSpec("lstm", 10_000, embedding=200, hidden=200), 64, 64),
        "lstm-2k": (ModelSpec("lstm", 2_000, embedding=200, hidden=200), 64, 64),
        "gpt2-4x256": (
            ModelSpec("gpt2", 4_000, hidden=256, layers=4, heads=4, context=128),
            128,
            32,
        ),
        "book-32": (ModelSpec("lstm", 512, embedding=64, hidden=64), 30, 32),
        "book-8": (ModelSpec("lstm", 512, embedding=64, hidden=64), 30, 8),
        "distilgpt2": (
            ModelSpec("gpt2", 50_257, hidden=768, layers=6, heads=12, context=1024),
            64,
            4,
        ),
    }
    | {  # by vocabulary and length, of as many tokens each
        f"gpt2-{vocabulary}-{length}": (
            ModelSpec("gpt2", vocabulary, hidden=256, layers=4, heads=4, context=length),
            length,
            2048 // length,
        )
        for vocabulary in (4_000, 50_257)
        for length in (128, 256, 512, 1024)
    }
    | {
        f"llama-{'lora-' if rank else ''}{length}": (
            LlamaShape(length, rank),
            length,
            2048 // length,
        )
        for rank in (0, 8)
        for length in (256, 1024)
    }
)
ENGINES = (
    "natural", "natural-chunked", "natural-bf16", "kernels", "ours", "ours-seeded", "opacus-hooks",
    "opacus-ghost", "fast-dp",
)  # fmt: skip
OTHERS = ("opacus-hooks", "opacus-ghost", "fast-dp")
"""Those of other packages, which take fewer turns."""
KEPT = ("natural", "natural-chunked", "kernels", "ours")
"""What also runs where the allocator keeps what is freed."""
ORDINARY = ("natural", "natural-chunked")
Turns = dict[str, list[tuple[float, float, float]]]
"""Of each engine: its seconds, and those of the natural step of the same round, and of the faster
one of ``ORDINARY``."""
MOST_ROUNDS = 200
CHUNK = 8  # examples whose logits the chunked step holds at once
CLIP_NORM, NOISE, RATE = 0.1, 1.0, 0.01


class Recurrent(nn.Module):
    """The LSTM language model as one would write it: ids (B, T) -> logits (B, T, V)."""

    def __init__(self, spec: ModelSpec, layer: type) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab_size, spec.embedding)
        self.lstm = layer(spec.embedding, spec.hidden, batch_first=True)
        self.head = nn.Linear(spec.hidden, spec.vocab_size)

    def hidden(self, ids: Tensor) -> Tensor:
        return self.lstm(self.embedding(ids))[0]

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.hidden(ids))


class Transformer(nn.Module):
    """A transformer with position ids of the batch's own size, which Opacus needs."""

    def __init__(self, spec: Shape) -> None:
        super().__init__()
        self.model = build(spec)

    def forward(self, ids: Tensor) -> Tensor:
        return self.model.lm_head(interface.hidden_states(self.model, ids))


def build(spec: Shape) -> nn.Module:
    """A model of random weights, always the same ones."""
    return build_model(spec, seed=0) if isinstance(spec, ModelSpec) else spec.build()


def stepper(name: str, engine: str, device: str, low: bool) -> Callable[[], None]:
    """A function that makes one step of a model of :data:`MODELS`."""
    spec, time_, batch = MODELS[name]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, spec.vocab_size, (batch, time_ + 1), generator=generator).to(device)
    low = low or engine == "natural-bf16"
    if engine.startswith("opacus"):
        return opacus_stepper(spec, engine, tokens, low)
    if engine == "fast-dp":
        return fast_dp_stepper(spec, tokens, low)
    torchs = engine.startswith("natural") and spec.recurrent
    return step_of(Recurrent(spec, nn.LSTM) if torchs else build(spec), engine, tokens, low)


def mixed(device: torch.device, low: bool) -> torch.autocast:
    """Products in bfloat16 where they are to be ``low``."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=low)


def step_of(model: nn.Module, engine: str, tokens: Tensor, low: bool) -> Callable[[], None]:
    """A function that makes one step of a model on these tokens (B, T + 1), by any engine but
    Opacus; of the parameters that learn."""
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    lengths = torch.full((len(tokens),), tokens.shape[1])  # on the host, as in training
    noise = torch.Generator(tokens.device).manual_seed(0) if engine == "ours-seeded" else SECURE
    model.to(tokens.device).train()
    learns = [p for p in model.parameters() if p.requires_grad]
    sgd, products = torch.optim.SGD(learns, lr=RATE), mixed(tokens.device, low)

    def natural() -> None:
        with products:
            out = model(ids)
            loss = F.cross_entropy(getattr(out, "logits", out).flatten(0, 1), targets.flatten())
        loss.backward()

    def kernels() -> None:
        with products:
            clipping.add_unclipped_gradients(model, tokens, lengths)

    def noiseless() -> None:
        with products:
            clipping.add_clipped_gradients(model, tokens, lengths, clip_norm=CLIP_NORM)

    def private() -> None:
        noiseless()
        add_noise(learns, std=NOISE * CLIP_NORM, generator=noise)

    kinds = {"kernels": kernels, "natural": natural, "natural-bf16": natural}
    kinds |= {"natural-chunked": partial(chunked, model, ids, targets, products)}
    gradient = (kinds | {"ours-noiseless": noiseless}).get(engine, private)

    def step() -> None:
        sgd.zero_grad()
        gradient()
        sgd.step()

    return step


def chunked(model: nn.Module, ids: Tensor, targets: Tensor, products: torch.autocast) -> None:
    """Forward and backward, the head's part in pieces: the logits are never there as a whole."""
    recurrent = isinstance(model, Recurrent)
    head = model.head if recurrent else model.lm_head
    with products:
        h = model.hidden(ids) if recurrent else interface.hidden_states(model, ids)
    cut = h.detach().requires_grad_()
    for piece, wanted in zip(cut.split(CHUNK), targets.split(CHUNK), strict=True):
        with products:
            logits = head(piece).flatten(0, 1)
            loss = F.cross_entropy(logits, wanted.flatten(), reduction="sum") / targets.numel()
        loss.backward()
    h.backward(cut.grad)


def multiplications(name: str) -> float:
    """Of the matrix products of an ordinary step: forward, and twice that backward, or once where
    adapters alone learn, whose own products are left out. So are those of attention: below 2 % of
    GPT-2 at these lengths, 8 % of a Llama's at 1,024 tokens."""
    spec, time_, batch = MODELS[name]
    n, passes = spec.hidden, 3.0
    if isinstance(spec, LlamaShape):
        keys = n * spec.key_value_heads // spec.heads
        inner = (2 * n * (n + keys) + 3 * n * spec.intermediate) * spec.layers
        passes = 2.0 if spec.rank else 3.0
    elif spec.recurrent:
        inner = 4 * n * (spec.embedding + n)
    else:
        inner = 12 * n * n * spec.layers
    return passes * batch * time_ * (inner + n * spec.vocab_size)


def speed(device: str, low: bool) -> float:
    """Multiplications a second of one large matrix product, the best of ten."""
    dtype = torch.bfloat16 if low else torch.float32
    a = torch.ones(1024, 1024, device=device, dtype=dtype)
    return 1024.0**3 / min(timed(lambda: torch.mm(a, a), device) for _ in range(10))


def fast_dp_stepper(spec: Shape, tokens: Tensor, low: bool) -> Callable[[], None]:
    """fast-differential-privacy as its manual says, with the clipping of Abadi et al."""
    from fastDP import PrivacyEngine

    products = mixed(tokens.device, low)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    model = Recurrent(spec, nn.LSTM) if spec.recurrent else Transformer(spec)
    model.to(ids.device).train()
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    with contextlib.redirect_stdout(sys.stderr):  # it prints what it does
        PrivacyEngine(
            model, batch_size=len(ids), sample_size=1000 * len(ids), epochs=1,
            noise_multiplier=NOISE, max_grad_norm=CLIP_NORM, clipping_mode="MixOpt",
            clipping_fn="Abadi", clipping_style="all-layer",
        ).attach(sgd)  # fmt: skip

    def step() -> None:
        with products:
            loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        sgd.step()
        sgd.zero_grad()

    return step


def opacus_stepper(spec: Shape, engine: str, tokens: Tensor, low: bool) -> Callable[[], None]:
    """Opacus as its manual says, in either mode."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.layers import DPLSTM
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    ghost, products = engine == "opacus-ghost", mixed(tokens.device, low)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if spec.recurrent:
        model = Recurrent(spec, DPLSTM)
    else:
        untied = ghost and isinstance(spec, ModelSpec)
        model = Transformer(replace(spec, tied=False) if untied else spec)
    model.to(ids.device).train()
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    options = {
        "noise_multiplier": NOISE,
        "max_grad_norm": CLIP_NORM,
        "expected_batch_size": len(ids),
        "generator": torch.Generator(tokens.device).manual_seed(0),
    }
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(sgd, **options)
        criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())
    else:
        wrapped = GradSampleModule(model)
        optimizer = DPOptimizer(sgd, **options)

    def step() -> None:
        optimizer.zero_grad()
        with products:
            logits = wrapped(ids)
            if ghost:
                loss = criterion(logits.flatten(0, 1), targets.flatten(), shape=logits.shape)
            else:
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None], device: str) -> float:
    """Seconds of one step."""
    if device != "cpu":
        torch.cuda.synchronize()
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else None
    clock = clock or time.perf_counter
    start = clock()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def measure(name: str, engines: Sequence[str], rounds: int, device: str, low: bool) -> list[dict]:
    """Rows of one model, of the engines that share a process."""
    seconds = turns(name, engines, device, low, rounds)
    limit = multiplications(name) / speed(device, low)
    fastest = min(s for s, *_ in seconds["natural"])
    return [
        row(name, engine, pairs, fastest, round(limit / min(s for s, *_ in pairs), 2))
        for engine, pairs in seconds.items()
    ]


def peak(name: str, engine: str, device: str, low: bool) -> float:
    """Megabytes that three steps need over what a fresh process held before the model."""
    if engine.startswith("opacus"):
        importlib.import_module("opacus.grad_sample")
        importlib.import_module("opacus.optimizers")
    importlib.import_module("transformers.models.gpt2.modeling_gpt2")
    F.linear(torch.ones(64, 64), torch.ones(64, 64))  # libraries that load on first use
    Lstm(8, 8)(torch.ones(1, 1, 8))
    before = resident("VmRSS")
    step = stepper(name, engine, device, low)
    for _ in range(3):
        step()
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return resident("VmHWM") - before


def turns(name: str, engines: Sequence[str], device: str, low: bool, rounds: int) -> Turns:
    """Seconds of each step, engines in turn, for ``rounds`` rounds and at least a second; those of
    other packages in every eighth, from the end."""
    steps = {}
    for engine in engines:
        try:
            steps[engine] = stepper(name, engine, device, low)
            steps[engine]()  # warm up
        except Exception as error:
            if engine not in OTHERS:
                raise
            steps.pop(engine, None)
            print(f"{name} {engine}: {type(error).__name__}: {error}", file=sys.stderr)
    natural = timed(steps["natural"], device)
    rounds = max(rounds, min(MOST_ROUNDS, math.ceil(1 / natural)))
    seconds: Turns = {engine: [] for engine in steps}
    for r in reversed(range(rounds)):
        here = [e for e in steps if e not in OTHERS or r % 8 == 0]
        taken = {}
        for engine in here:
            steps[engine]()  # not timed: in training, a step finds what one of its own kind left
            taken[engine] = timed(steps[engine], device)
        best = min(s for engine, s in taken.items() if engine in ORDINARY)
        for engine, s in taken.items():
            seconds[engine].append((s, taken["natural"], best))
    return seconds


def again(*words: str, **environment: str) -> str:
    """The last line that this script prints in a fresh process, with these variables."""
    command, environment = [sys.executable, __file__, *words], os.environ | environment
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return out.stdout.splitlines()[-1]


def kept_memory(name: str, rounds: int, options: list[str]) -> list[dict]:
    """The rows of those that end in ``-malloc``: :func:`turns` of ``KEPT`` in fresh processes."""
    words = ["--alone", f"{name}:{rounds}", *options]
    plain = [s for s, *_ in json.loads(again(*words))["natural"]]
    usual = statistics.median(plain)
    return [
        row(name, f"{engine}-malloc", [(s, usual, best) for s, _, best in pairs], min(plain), None)
        for engine, pairs in json.loads(again(*words, **MALLOC)).items()
    ]


def row(name: str, engine: str, pairs, fastest: float, share: float | None) -> dict:
    """``pairs``: as in :data:`Turns`, of one engine."""
    return {
        "model": name,
        "engine": engine,
        "ratio_median": round(statistics.median(s / n for s, n, _ in pairs), 3),
        "ratio_min": round(min(s for s, *_ in pairs) / fastest, 3),
        "over_best": round(statistics.median(s / best for s, _, best in pairs), 3),
        "seconds_median": round(statistics.median(s for s, *_ in pairs), 4),
        "share": share,
        "rounds": len(pairs),
        "peak_mb": None,
    }


def resident(field: str) -> float:
    """Megabytes of this process in memory, now (VmRSS) or at most so far (VmHWM); Linux only.

    Not ``getrusage``, whose maximum a process inherits from the one that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(field)) / 1024


def machine(device: str) -> dict:
    """Where this was measured, with what, and of which code."""
    threads = torch.get_num_threads()
    packages = (
        "torch", "transformers", "peft", "triton", "opacus", "fast-differential-privacy", "numpy",
    )  # fmt: skip
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    where = {
        "cpu": tables.name_processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "clock": "process" if device == "cpu" and threads == 1 else "wall",
        "load_at_start": os.getloadavg()[0],
        "system": platform.platform(terse=True),
        "date": datetime.date.today().isoformat(),
    }
    return {
        "version": __version__,
        "commit": tables.find_commit(),
        "machine": where,
        "versions": versions | {"python": platform.python_version()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, memory of ours only")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=[*ENGINES],
        help="beside natural; natural-bf16 takes 20 times as long where a CPU emulates it",
    )  # fmt: skip
    parser.add_argument(
        "--turns-only", action="store_true",
        help="no rows of fresh processes: neither those that end in -malloc nor memory",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help="of a model; 16 by default, 5 with --quick")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--bf16", action="store_true", help="products in bfloat16 (autocast)")
    parser.add_argument("--threads", type=int, default=1, help="threads of a CPU")
    parser.add_argument("--peak", metavar="MODEL:ENGINE", help=argparse.SUPPRESS)
    parser.add_argument("--alone", metavar="MODEL:ROUNDS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")  # torch on Opacus' hooks of layers that read token ids
    if args.peak:
        print(peak(*args.peak.split(":"), args.device, args.bf16))
        return
    if args.alone:
        name, rounds = args.alone.split(":")
        print(json.dumps(turns(name, KEPT, args.device, args.bf16, int(rounds))))
        return
    where, rows = machine(args.device), []
    options = ["--device", args.device, "--threads", str(args.threads)]
    options += ["--bf16"] if args.bf16 else []
    for name in args.models:
        rounds = args.rounds or (5 if args.quick else 16)
        engines = [each for each in ENGINES if each in {"natural", *args.engines}]
        table = measure(name, engines, rounds, args.device, args.bf16)
        alone = platform.libc_ver()[0] == "glibc" and args.device == "cpu"
        if alone and not args.turns_only:
            table += kept_memory(name, rounds, options)
        for line in table:
            peaks = ("natural", "ours") if args.quick else ENGINES
            if line["engine"] in peaks and not args.turns_only:
                peaked = again("--peak", f"{name}:{line['engine']}", *options)
                line["peak_mb"] = round(float(peaked))
            rows.append(line)
            print(json.dumps(line), flush=True)
    if args.json:
        files.write_text(args.json, json.dumps(where | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
