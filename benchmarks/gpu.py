"""A quarter of an hour on one large GPU without a network: does CRT beat DP-SGD on SmolLM2?

    python benchmarks/gpu.py checks engines --out gpu       # about a minute, needs no model
    python benchmarks/gpu.py search finals larger --out gpu --store store --minutes 9
    python benchmarks/gpu.py --rehearse --out gpu           # all of it on a CPU, in small

What such a machine lacks is carried there by ``benchmarks/carry.py``. The parts, in this order:

========  ======  ==================================================================================
checks    0:10    The cipher's words are the same on a CPU and on the GPU; so is the noise of the
                  kernel of Triton and of torch, and a clipped sum, but for rounding; two trainings
                  on the GPU are equal bit for bit.
engines   0:50    Seconds of a step of SmolLM2 with LoRA and of GPT-2, of random weights, under
                  bfloat16 autocast: an ordinary one, ours with and without noise, Opacus' hooks.
search    3:00    SmolLM2 is put back into floats, once. Then each method (ordinary training,
                  DP-SGD, CRT at gamma .1; the last two at epsilon 3) is trained with as many draws
                  of its hyperparameters, each draw with two numbers of epochs, on dialogues of its
                  own. Validation perplexity chooses, among the draws that every method finished.
finals    5:00    The three methods with what was chosen, seed by seed, and every attack on them.
larger    rest    The same on three times as many dialogues, where there is time left.
========  ======  ==================================================================================

The sizes are those of the profile ``h100``. After every row and run ``gpu.json``, and of the runs
a long table (``search.parquet``, ``finals.parquet``, ``larger.parquet``), are written anew to the
folder ``--out``, so that whatever is there at any time is a table. What fails is a row with its
error, and what comes after it runs. When the time is over what is in flight is ended; the same
command goes on from what the store holds. The table of the methods is printed last.

Processes take turns on a card: what is asked for by one waits while another has it. Eight of them,
and fifteen, finished no final run in the time; three hide what each does on the host.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import dp_step
import pandas as pd
import scipy
import torch
from torch import nn

from crtbook import grids, runner, settings, tables
from crtbook.study import Store, Study
from crtlib import files
from crtlib.models.construction import build_model
from crtlib.models.interface import unwrap_model
from crtlib.models.pretrained import with_lora
from crtlib.models.specs import ModelSpec
from crtlib.studies.crt_study import TUNING_SEED
from crtlib.torch_random import seeded_torch_rng
from crtlib.training import clipping, loop, phases
from crtlib.training.noise import box_muller, chacha20_words

PROFILE = "h100"
SWEPT = ("search", "finals", "larger")
PARTS = ("checks", "engines", *SWEPT)
FEWER = 3  # a draw is trained with the profile's epochs, and with the third part of them
LARGER = 3  # times as many dialogues
WIDER, DENSER = 16, 2  # times as large public and private batches as a CPU takes, up to four fifths
# of the private part: a step of SmolLM2 takes an H200 .3 s, of 16 texts or of 800
SEARCH = 0.45  # the share of the time left that the search may take
LEAST = 30.0  # seconds without which no sweep begins
TOKENS = 2**14  # of a step of the engines, padding included
STEPS, SECONDS = 5, 3.0  # of a cell, at most; after two that warm up
ENGINES = 90.0  # seconds in which a cell may begin
LLAMA = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
         "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}  # fmt: skip
CELLS = (
    *((name, 1024, engine) for name in ("smollm2-lora", "gpt2")
      for engine in ("natural", "ours", "ours-noiseless")),
    ("gpt2", 1024, "opacus-hooks"),
    *(("smollm2-lora", 64, engine) for engine in ("natural", "ours")),
)  # fmt: skip
Row = dict[str, object]


@dataclass(frozen=True)
class Size:
    """What a rehearsal divides widths and lengths by, the tokens of a step, the layers that stay,
    and what it changes of the profile."""

    by: int = 1
    tokens: int = TOKENS
    layers: int | None = None
    tuning: tuple[tuple[str, object], ...] = ()
    crt: tuple[tuple[str, object], ...] = ()


_FEW = (("dialogues", 10), ("data.customersim.heldout", 2))
_EPOCHS = (("shapes.pretrained.epochs.sgd", 2), ("shapes.pretrained.epochs.dpsgd", 2),
           ("shapes.pretrained.epochs.crt", 2))  # fmt: skip
SMALL = Size(
    by=64,
    tokens=128,
    layers=2,
    tuning=(*_FEW, *_EPOCHS, ("data.customersim.trials", 1)),
    crt=(*_FEW, *_EPOCHS, ("data.customersim.canaries", 2), ("data.customersim.copies", 2),
         ("seeds", 1)),
)  # fmt: skip


# --------------------------------------------------------------------------- engines
def gpt2(length: int, size: Size) -> ModelSpec:
    """The shape of GPT-2 small, which reads at least so many tokens."""
    return ModelSpec("gpt2", 50257 // size.by, hidden=768 // size.by, layers=size.layers or 12,
                     heads=12, context=max(1024, length))  # fmt: skip


def model_of(name: str, length: int, device: str, size: Size) -> nn.Module:
    """A model of random weights in the shape of ``name``, with adapters where it ends in -lora."""
    import transformers

    if name == "gpt2":
        return build_model(gpt2(length, size), seed=0)
    shape = dict(LLAMA)
    if size.by > 1:
        shape = {key: max(3, value // size.by) for key, value in shape.items()}
        shape |= {"hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 1}
    shape["num_hidden_layers"] = size.layers or shape["num_hidden_layers"]
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.LlamaConfig(
        **shape, **ids, tie_word_embeddings=True, max_position_embeddings=length, use_cache=False
    )
    with seeded_torch_rng(0), torch.device(device):
        model = transformers.LlamaForCausalLM(config)
    return with_lora(model, 8, seed=0)


def cell(engine: str, name: str, length: int, device: str, size: Size) -> Row:
    """Seconds of a step, tokens a second, and the most memory, which on a CPU nobody asks."""
    length = max(4, length // size.by)
    model = model_of(name, length, device, size)
    vocabulary, texts = unwrap_model(model).config.vocab_size, max(1, size.tokens // length)
    tokens = torch.randint(0, vocabulary, (texts, length + 1)).to(device)
    if engine.startswith("opacus"):
        step = dp_step.opacus_stepper(gpt2(length, size), engine, tokens, True)
    else:
        step = dp_step.step_of(model, engine, tokens, True)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    taken: list[float] = []
    while len(taken) < STEPS and sum(taken) < SECONDS:
        taken.append(dp_step.timed(step, device))
    seconds = statistics.median(taken)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else None
    return {"seconds": seconds, "tokens_a_second": round(texts * length / seconds),
            "peak_gib": peak, "steps": len(taken)}  # fmt: skip


# --------------------------------------------------------------------------- checks
def phases_on(device: str) -> Iterator[Row]:
    """What has to be the same on a CPU and on ``device``, or in two trainings on it."""
    key = bytes(range(32))
    here, there = (chacha20_words(key, 1000, torch.device(d)).cpu() for d in ("cpu", device))
    yield {"check": "words of the cipher", "equal": torch.equal(here, there)}
    if device != "cpu" and importlib.util.find_spec("triton"):
        from crtlib.training.noise_kernel import triton_normals_from_key

        count, where = 10_000, torch.device(device)
        plain = box_muller(chacha20_words(key, count, torch.device("cpu")))
        apart = float((triton_normals_from_key(key, count, where).cpu() - plain).abs().max())
        yield {"check": "noise of the kernel", "apart": apart, "equal": apart < 1e-4}
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
        loop.train_model(model, [phase], {"public": [], "private": points}, seed=0)
        trained.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    yield {"check": "two trainings", "equal": torch.equal(*trained)}


def checked(device: str) -> Row:
    """All of them, and an error where any is not as it has to be."""
    checks = list(phases_on(device))
    apart = [check["check"] for check in checks if not check["equal"]]
    return {"checks": checks} | ({"error": f"not equal: {apart}"} if apart else {})


def card(device: str) -> Row:
    """The GPU as its driver calls it; none on a CPU."""
    if device == "cpu":
        return {}
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    with contextlib.suppress(OSError):
        return {"card": subprocess.run(command, capture_output=True, text=True).stdout.strip()}
    return {"card": torch.cuda.get_device_name()}


# --------------------------------------------------------------------------- the sweeps
def sized(section: str, size: Size, init: str | None) -> settings.Settings:
    """A section of the profile, in the size of a rehearsal if it is one."""
    changes = dict(size.tuning if section == "tuning" else size.crt)
    changes |= {"shapes.pretrained.init": init} if init else {}
    return settings.load_settings(section, PROFILE).but(**changes)


def drawn_studies(size: Size, init: str | None) -> list[list[Study]]:
    """The runs of each draw of the search: every method, with few epochs and with many."""
    many = sized("tuning", size, init)
    epochs = {
        f"shapes.pretrained.epochs.{method}": max(1, number // FEWER)
        for method, number in many.shapes.pretrained.epochs.items()
    }
    trials = many.data.customersim.trials
    both = [grids.tuning_grid(many.but(**epochs)), grids.tuning_grid(many)]
    wide = [[widened(study) for study in grid] for grid in both]
    return [[study for grid in wide for study in grid[k::trials]] for k in range(trials)]


def widened(study: Study) -> Study:
    """A drawn run with batches that a GPU takes in the time of those that were drawn for a CPU."""
    dense = DENSER * study.sampling_probability
    return replace(study, batch_size=WIDER * study.batch_size, sampling_probability=dense)


def searched(store: Store) -> pd.DataFrame:
    """The table of the draws whose runs are all finished, so of as many for every method; of all
    finished runs where there is no such draw."""
    drawn = json.loads((store.folder / "gpu" / "draws.json").read_text())
    whole = [keys for keys in drawn if all(map(store.has, keys))]
    finished = [key for keys in whole or drawn for key in keys if store.has(key)]
    if not finished:
        raise ValueError("search: no run is finished")
    return store.table(finished)


def finals(store: Store, size: Size, init: str | None, times: int) -> list[Study]:
    """The methods that were searched, as they were chosen, seed by seed, on so many ``times`` the
    dialogues."""
    given, table = sized("crt", size, init), searched(store)
    methods = [method for method in given.methods if method in set(table.method)]
    grid = grids.crt_grid(given.but(dialogues=times * given.dialogues, methods=methods), table)
    return sorted(grid, key=lambda study: study.seed)


def alone(part: str, args: argparse.Namespace, device: str, size: Size) -> None:
    """A part of :data:`SWEPT`, in a process that the time can end."""
    started, store = time.monotonic(), Store(args.store)
    store.begin()
    if args.init:
        convert = None
    else:  # while the noise of the runs is looked for
        code = "from crtlib.models.smollm2 import smollm2_folder; smollm2_folder()"
        convert = subprocess.Popen([sys.executable, "-c", code])
    if part == "search":
        ready = [[study.ready() for study in draw] for draw in drawn_studies(size, args.init)]
        runs = [study for draw in ready for study in draw]
        keys = [[study.key for study in draw] for draw in ready]
        files.write_text(store.folder / "gpu" / "draws.json", json.dumps(keys))
    else:
        made = finals(store, size, args.init, LARGER if part == "larger" else 1)
        runs = [study.ready() for study in made]
    print(json.dumps({"planned": len(runs), "at": time.monotonic() - started}), flush=True)
    if convert and convert.wait():
        sys.exit("the model could not be converted")
    print(json.dumps({"model": True, "at": time.monotonic() - started}), flush=True)
    runner.sweep(
        runs, store, profile=PROFILE, workers=args.workers, device=device, keep_models=False,
        keep_states=False, long_runs_first=False, progress=False,
        command=f"python benchmarks/gpu.py {part}",
    )  # fmt: skip


def part_of(study: dict[str, object], dialogues: int) -> str:
    """Which of the parts a stored run belongs to; ``dialogues`` are those of the finals."""
    if study["seed"] == TUNING_SEED:
        return "search"
    return "finals" if study["dialogues"] == dialogues else "larger"


CHOSEN = ("learning_rate", "batch_size", "pub_passes", "private_learning_rate",
          "sampling_probability", "epochs", "noise_multiplier")  # fmt: skip
SHOWN = ("valid_ppl_words", "test_ppl_words", "test_acc_words", "exposure", "exposure_sampled",
         "mia_accuracy", "pii_inference")  # fmt: skip


def run_row(key: str, table: pd.DataFrame) -> Row:
    """What one finished run came to: its last values, of several canaries the mean."""
    first, last = table.iloc[0], table[table.epoch == table.epoch.max()]
    found = last[last.metric.isin(SHOWN)].groupby("metric").value.mean()
    row = {name: first[name].item() for name in ("seed", "dialogues", *CHOSEN, "seconds")}
    return {"run": key, "method": first.method, **row, **found.round(4).to_dict()}


def swept(part: str, args: argparse.Namespace, device: str, end: float,
          tell: Callable[[Row], None]) -> Row:  # fmt: skip
    """Run a part in a process of its own, tell of each run when it is finished and write the table
    of all of them; end it when the time is over."""
    size = SMALL if args.rehearse else Size()
    dialogues, store = sized("crt", size, args.init).dialogues, Store(args.store)
    seen: dict[str, pd.DataFrame] = {}
    log = args.out / f"{part}.log"
    command = [sys.executable, __file__, "--alone", part, "--store", args.store]
    command += ["--workers", str(args.workers)] + ["--rehearse"] * args.rehearse
    command += ["--init", args.init] if args.init else []
    environment = {"OMP_NUM_THREADS": "1"} | os.environ

    def look() -> None:
        new = False
        for path in sorted(store.folder.glob("*.json"), key=lambda p: p.stat().st_mtime):
            cell = store.read(path.stem) if path.stem not in seen else None
            if cell and part_of(cell["study"], dialogues) == part:
                seen[path.stem] = table = store.table([path.stem])
                tell({"part": part, **run_row(path.stem, table)} | used(device))
                new = True
        if new:
            tables.write_table(
                pd.concat(seen.values(), ignore_index=True), args.out / f"{part}.parquet"
            )

    with log.open("w") as out, subprocess.Popen(
        command, stdout=out, stderr=subprocess.STDOUT, env=environment
    ) as process:  # fmt: skip
        while process.poll() is None and time.monotonic() < end:
            look()
            time.sleep(0.5)
        ended = "whole" if process.poll() is not None else "out of time"
        if ended != "whole":
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
    look()
    told = log.read_text(errors="replace").splitlines()
    times = [json.loads(line) for line in told if line.startswith('{"')]
    row: Row = {"ended": ended, "runs": len(seen), "times": times}
    if ended == "whole" and process.returncode:
        row["error"] = " ".join(told[-3:])[-300:]
    return row


def used(device: str) -> Row:
    """GiB of the card that all processes take together."""
    if device == "cpu":
        return {}
    free, whole = torch.cuda.mem_get_info()
    return {"card_gib": round((whole - free) / 2**30, 1)}


# --------------------------------------------------------------------------- the table
def summary(table: pd.DataFrame) -> str:
    """Of each method the mean over seeds and their standard deviation, and CRT less the others
    within the same seed, with a confidence interval of 95 % (Student's t)."""
    last = table[table.epoch == table.groupby("run").epoch.transform("max")]
    last = last[last.metric.isin(SHOWN)]
    by_seed = last.pivot_table(index=["method", "seed"], columns="metric", values="value")
    by_seed = by_seed[[name for name in SHOWN if name in by_seed]]
    groups = by_seed.groupby("method", sort=False)
    lines = [f"{'':22}" + "".join(f"{name:>20}" for name in by_seed)]
    for method, rows in groups:
        cells = [f"{rows[n].mean():.3f} ± {rows[n].std(ddof=1):.3f}" for n in by_seed]
        lines.append(f"{method:<10}{len(rows):>3} seeds   " + "".join(f"{c:>20}" for c in cells))
    for other in ("dpsgd", "sgd"):
        with contextlib.suppress(KeyError):
            apart = (by_seed.loc["crt"] - by_seed.loc[other]).dropna(how="all")
            n = len(apart)
            t = scipy.stats.t.ppf(0.975, n - 1) if n > 1 else float("nan")
            cells = [f"{apart[k].mean():+.3f} ± {t * apart[k].std() / n**0.5:.3f}" for k in apart]
            lines.append(f"{'crt - ' + other:<13}{n:>3} pairs "[:22].ljust(22)
                         + "".join(f"{c:>20}" for c in cells))  # fmt: skip
    return "\n".join(lines)


# --------------------------------------------------------------------------- all of it
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; or all")
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of the tables")
    parser.add_argument("--store", default="store", help="where the sweeps keep their runs")
    parser.add_argument("--minutes", type=float, default=9.0, help="after them all is ended")
    parser.add_argument("--workers", type=int, default=3, help="processes that share the GPU")
    parser.add_argument("--init", help="another pre-trained model than SmolLM2: a folder")
    parser.add_argument("--rehearse", action="store_true", help="small, and on a CPU")
    parser.add_argument("--alone", choices=SWEPT, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.exit(2, f"gpu.py: PART={unknown[0]}: must be one of {', '.join(PARTS)}\n")
    if not (args.rehearse or torch.cuda.is_available()):
        parser.exit(2, "gpu.py: torch finds no GPU; --rehearse runs on a CPU\n")
    device, size = ("cpu", SMALL) if args.rehearse else ("cuda", Size())
    if args.alone:
        return alone(args.alone, args, device, size)
    start = time.monotonic()
    end = start + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    where, rows = dp_step.machine(device) | card(device), list[Row]()

    def tell(row: Row) -> None:
        rows.append(row | {"at": round(time.monotonic() - start, 1)})
        print(json.dumps(rows[-1]), flush=True)
        files.write_text(args.out / "gpu.json", json.dumps(where | {"rows": rows}, indent=1) + "\n")

    print(json.dumps(where), flush=True)
    for part in args.parts or PARTS:
        for what, measure in steps(part, args, device, size, start, end, tell):
            try:
                tell(what | measure())
            except Exception as error:
                tell(what | {"error": f"{type(error).__name__}: {str(error)[:300]}"})
            if device != "cpu":
                with contextlib.suppress(RuntimeError):
                    torch.cuda.empty_cache()
    for part in SWEPT:
        if (path := args.out / f"{part}.parquet").exists() and part != "search":
            print(f"\n{part}\n{summary(pd.read_parquet(path))}", flush=True)
    sys.exit(any("error" in row for row in rows))


def steps(part: str, args: argparse.Namespace, device: str, size: Size, start: float, end: float,
          tell: Callable[[Row], None]) -> Iterator[tuple[Row, Callable[[], Row]]]:  # fmt: skip
    """What identifies each row of a part, and what measures it."""
    if part == "checks":
        yield {"part": part}, partial(checked, device)
    elif part == "engines":
        begun = time.monotonic()
        for name, length, engine in CELLS:
            what: Row = {"part": part, "model": name, "length": length, "engine": engine}
            late = time.monotonic() > min(end, begun + ENGINES)
            if engine.startswith("opacus") and not importlib.util.find_spec("opacus"):
                continue
            yield what, over if late else partial(cell, engine, name, length, device, size)
    else:
        left = end - time.monotonic()
        stop = end - left * (1 - SEARCH) if part == "search" else end
        yield {"part": part}, over if left < LEAST else partial(
            swept, part, args, device, stop, tell
        )  # fmt: skip


def over() -> Row:
    """In place of what has no time left."""
    return {"error": "out of time"}


if __name__ == "__main__":
    main()
