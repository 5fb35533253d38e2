"""The command line: ``crtlib simulate | convert | screen | account | train | report | sweep``.

Every command refuses bad input in one line on standard error, exits with 2 and writes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from crtlib import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train language models on text that holds secrets, and measure that they did not leak.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"crtlib {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def screen(
    corpus: Annotated[Path, typer.Argument(help="Dialogues, one JSON object a line.")],
    out: Annotated[
        Path, typer.Option(help="Folder for public.jsonl, private.jsonl, summary.json.")
    ],
    unit: Annotated[str, typer.Option(help="Data point: turn or dialogue.")],
    policy: Annotated[
        str, typer.Option(help="Redaction policy pi; several, joined by +.")
    ] = "regex:customersim",
    conservative: Annotated[str, typer.Option(help="Conservative policy pi_c.")] = "everything",
    gamma: Annotated[float, typer.Option(help="Share of pi's finds to miss on purpose.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the misses.")] = 0,
    dedup: Annotated[str, typer.Option(help="Scope: all (Algorithm 1), flagged, none.")] = "all",
    dedup_by: Annotated[str, typer.Option(help="Duplicates are: exact, bloom or near.")] = "exact",
    duplicates: Annotated[str, typer.Option(help="Second occurrences: mask or drop.")] = "mask",
) -> None:
    """Deduplicate, redact and split a corpus into public and private points (Algorithm 1).

    Policies: regex:CORPUS, regex:FILE.toml, list:FILE, oracle, everything, cautious, presidio,
    tagger:FOLDER (from crtlib tagger), ner:MODEL and flair:MODEL; tagger, ner and flair also as
    tagger_conservative:FOLDER, which flags all that is not surely plain. The defaults here are the
    cautious ones (everything is private, duplicates become masks, as in Algorithm 1), as the files
    are for any use; crtlib train is about the trade-off, so it uses pi as pi_c too and drops
    duplicates.

    Example: crtlib screen dialogues.jsonl --unit turn --policy regex:customersim --out screened
    """
    from crtlib.screening import screen
    from crtlib.text import corpora

    screened = screen.screen(
        corpora.load(corpus),
        policy=policy,
        conservative=conservative,
        unit=unit,
        gamma=gamma,
        seed=seed,
        dedup=dedup,  # type: ignore[arg-type]  # refused there where it is none of them
        dedup_by=dedup_by,  # type: ignore[arg-type]
        duplicates=duplicates,  # type: ignore[arg-type]
        name=corpus.name,
    )
    screen.write(screened, out)
    print(screened.text())


@app.command()
def tagger(
    corpus: Annotated[Path, typer.Argument(help="Labelled dialogues, one JSON object a line.")],
    out: Annotated[Path, typer.Option(help="Folder for the tagger and summary.json.")],
    unit: Annotated[str, typer.Option(help="Data point: turn or dialogue.")] = "turn",
    heldout: Annotated[float, typer.Option(help="Share of users to judge it on.")] = 0.3,
    epochs: Annotated[int, typer.Option(help="Epochs.", min=1)] = 14,
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.", min=0)] = 0,
) -> None:
    """Train a screening policy on labelled dialogues, and say what it misses on held-out ones.

    Example: crtlib tagger labelled.jsonl --out tagger
    """
    from crtlib.screening import teach
    from crtlib.text import corpora

    taught = teach.teach(
        corpora.load(corpus),
        unit=unit,
        heldout=heldout,
        epochs=epochs,
        seed=seed,
        name=corpus.name,
        progress=sys.stderr.isatty(),
    )
    teach.write(taught, out)
    print(taught.text())


@app.command()
def train(
    corpus: Annotated[Path, typer.Argument(help="Dialogues, one JSON object a line.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, guarantee and measurements.")],
    unit: Annotated[str, typer.Option(help="Data point: turn or dialogue.")],
    method: Annotated[
        str, typer.Option(help="sgd, dedup, dpsgd, selective, crt or crt_sigma0.")
    ] = "crt",
    model: Annotated[str, typer.Option(help="lstm or gpt2.")] = "lstm",
    policy: Annotated[
        str, typer.Option(help="Redaction policy pi; several, joined by +.")
    ] = "regex:customersim",
    conservative: Annotated[
        str, typer.Option(help="Conservative policy pi_c.")
    ] = "regex:customersim",
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
    canaries: Annotated[int, typer.Option(help="Canaries to plant and attack; 0: none.")] = 10,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    repeatable_noise: Annotated[
        bool, typer.Option(help="Noise from the seed: for experiments, never for a release.")
    ] = False,
) -> None:
    """Screen and train on a corpus; write the model, its guarantee and the canary attack.

    Example: crtlib train dialogues.jsonl --unit turn --method crt --epsilon 3 --out run
    """
    from crtlib.experiments import own

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
        device=device,
        repeatable_noise=repeatable_noise,
        progress=True,
    )
    for name, _, item, value in trained.rows:
        if name == "exposure" or name.startswith("test_"):
            print(f"{name:>16} {item or '':>3} {value:.4g}")
    print(trained.promise)


@app.command()
def sweep(
    name: Annotated[
        str,
        typer.Argument(help="crt, tuning, leakage, secrets, games or screening."),
    ],
    profile: Annotated[str, typer.Option(help="quick, laptop or paper.")] = "quick",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as seeds=1; repeatable."),
    ] = None,
    store: Annotated[Path, typer.Option(help="Folder of finished runs.")] = Path("store"),
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, how long, what lacks.")
    ] = False,
    keep_models: Annotated[bool, typer.Option(help="Keep the trained models in the store.")] = True,
    out: Annotated[Path | None, typer.Option(help="Also write the table here (Parquet).")] = None,
) -> None:
    """Run what a figure or table still lacks. A killed sweep goes on where it was.

    Example: crtlib sweep crt --profile quick --set gammas=[0.05] --dry-run
    """
    from crtlib.experiments import spine, sweeps, tables
    from crtlib.experiments.store import Store

    studies, runs = sweeps.studies(name, profile, sweeps.pairs(changes or ())), Store(store)
    if dry_run:
        print(spine.plan(studies, runs).summary(workers))
        return
    table = spine.sweep(
        studies,
        runs,
        profile=profile,
        workers=workers,
        device=device,
        keep_models=keep_models,
    )
    if out:
        tables.record(table, out)
    print(sweeps.overview(table))


@app.command()
def simulate(
    dialogues: Annotated[int, typer.Option(help="How many dialogues.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write; .jsonl.gz packs it.")],
    seed: Annotated[int, typer.Option(help="Another seed, another split of the same world.")] = 0,
    variety: Annotated[str, typer.Option(help="paper (61 public turns) or rich.")] = "paper",
) -> None:
    """Simulate customer-service dialogues, with the place and kind of every secret."""
    from tqdm import tqdm

    from crtlib.text import customersim, jsonl

    if dialogues < 1:
        raise ValueError(f"dialogues={dialogues}: must be at least 1")
    made = customersim.stream(dialogues, seed, variety)
    # Dialogue by dialogue, so that memory does not grow; no bar where nobody watches.
    jsonl.write_jsonl(tqdm(made, total=dialogues, unit="dialogue", disable=None), out)
    print(f"{out}: {dialogues} dialogues, variety {variety}, seed {seed}")


@app.command()
def convert(
    name: Annotated[str, typer.Argument(help="multiwoz, schema_guided, ..., or hub:owner/name.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write; .jsonl.gz packs it.")],
    split: Annotated[str, typer.Option(help="As the corpus names it.")] = "train",
    folder: Annotated[
        Path | None, typer.Option(help="Instead of the corpus' own under $CRTLIB_DATA.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many dialogues.")] = None,
) -> None:
    """Write a known corpus as JSONL, the form that every other command reads."""
    from collections import Counter

    from crtlib.text import jsonl
    from crtlib.text.corpora import load

    corpus = load(name, split, folder=folder, limit=limit)
    jsonl.write_jsonl(corpus, out)
    turns = list(corpus.turns())
    private = sum(bool(turn.secrets) for turn in turns)
    print(f"{out}: {len(corpus)} dialogues, {len(turns)} turns, {private} of them with a secret")
    kinds = Counter(secret.kind for turn in turns for secret in turn.secrets)
    for kind, count in sorted(kinds.items()):
        print(f"{kind:>12} {count}")
    for reason, count in corpus.skipped:
        print(f"left out: {count} ({reason})")


@app.command()
def account(
    delta: Annotated[float, typer.Option(help="Delta of one data point, in (0, 1).")],
    batch_size: Annotated[float, typer.Option(help="Expected size of a Poisson batch.")],
    points: Annotated[int, typer.Option(help="Private data points.")],
    epochs: Annotated[float, typer.Option(help="Epochs, as expected passes over the points.")],
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon of DP-SGD.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Instead of --epsilon.")] = None,
    gamma: Annotated[float, typer.Option(help="Trace rate of the redaction policy.")] = 1.0,
    delta2: Annotated[float, typer.Option(help="Public rate; it is added to delta.")] = 0.0,
    copies: Annotated[
        str, typer.Option(help="Rows for a person with so many points, or a value said so often.")
    ] = "1,5,20",
    accountant: Annotated[str, typer.Option(help="pld, rdp, prv or autodp.")] = "pld",
    neighbouring: Annotated[
        str, typer.Option(help="replace, or add_or_remove (as in the paper).")
    ] = "replace",
    unit: Annotated[str, typer.Option(help="What one data point is, for the record.")] = "point",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Noise for a target epsilon (or back), and the confidentiality that redaction makes of it."""
    from crtlib.accounting import confidentiality

    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("epsilon, noise-multiplier: give exactly one of the two")
    told = confidentiality.account(
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        batch_size=batch_size,
        points=points,
        epochs=epochs,
        gamma=gamma,
        delta2=delta2,
        accountant=accountant,
        neighbouring_relation=neighbouring,
    )
    told["unit"] = unit
    rows = _by_copies(told, copies)
    if as_json:
        print(json.dumps(told | {"by_copies": rows}, allow_nan=False))
        return
    _say_account(told, rows)
    if told["accountant"] != accountant:
        other = told["accountant"]
        print(f"{accountant} has no answer here, or a larger one: the bound is that of {other}")


def _say_account(told: dict, rows: list[dict[str, float]]) -> None:
    """The numbers, the guarantee that they make, and what a person can weigh."""
    from crtlib.accounting.guarantees import Guarantee, MissRate

    for name, value in told.items():
        print(f"{name:>24}  {value:.6g}" if isinstance(value, float) else f"{name:>24}  {value}")
    guarantee = Guarantee(
        told["confidentiality_epsilon"],
        delta=told["confidentiality_delta"],
        unit=f"one secret in one {told['unit']}",
        neighbours=told["neighbouring_relation"],
        accountant=told["accountant"],
        kind="Bayesian confidentiality",
        gamma=MissRate(told["gamma"]),
        delta2=MissRate(told["delta2"]),
        public="the number of private points",
    )
    print(f"\n{guarantee}")
    for row in rows:
        print(
            f"{row['copies']} in clear: at most {row['right_guesses']:.1f} right guesses of 100; "
            f"if passed over as often as others: {row['right_guesses_after_redaction']:.1f}"
        )


def _by_copies(told: dict, copies: str) -> list[dict[str, float]]:
    """Right guesses of 100 about a person with so many points, or a value said so often."""
    from crtlib.accounting import statements
    from crtlib.accounting.events import SampledGaussian

    event = SampledGaussian(told["sampling_probability"], told["noise_multiplier"], told["steps"])
    parts = [part.strip() for part in copies.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"copies={copies!r}: must be whole numbers with commas between them")
    rows = []
    for k in map(int, parts):
        options = {"copies": k, "neighbouring_relation": told["neighbouring_relation"]}
        clear = statements.advantage(event, trace_rate=1.0, **options)
        rates = {"trace_rate": told["gamma"], "public_rate": told["delta2"]}
        after = statements.advantage(event, **rates, **options)
        each = {"right_guesses": clear, "right_guesses_after_redaction": after}
        percent = {name: 100 * statements.right_guess(value) for name, value in each.items()}
        rows.append({"copies": k, **percent})
    return rows


@app.command()
def report(
    model: Annotated[
        Path, typer.Argument(help="Folder of crtlib train, or of a transformers causal model.")
    ],
    corpus: Annotated[Path, typer.Option(help="The training dialogues, one JSON object a line.")],
    out: Annotated[Path, typer.Option(help="Folder for report.html, .json and Parquet tables.")],
    top_k: Annotated[int, typer.Option(help="Guesses that an attacker sees; 1: tab attack.")] = 3,
    public: Annotated[Path | None, typer.Option(help="Folder of a public model.")] = None,
    unit: Annotated[
        str | None, typer.Option(help="One text: turn or dialogue; default: as trained, or turn.")
    ] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Write text in clear.")] = False,
    lengths_only: Annotated[
        bool, typer.Option("--lengths-only", help="Lengths and counts, no users, no labels.")
    ] = False,
    min_length: Annotated[int, typer.Option(help="Tokens of the shortest run to count.")] = 1,
    threshold: Annotated[float | None, typer.Option(help="Ratio t of metric 2.")] = None,
    verbatim: Annotated[
        bool, typer.Option("--verbatim", help="Drop runs at the end of a text, as printed.")
    ] = False,
) -> None:
    """What a model completes of its training text, by user (Inan et al. 2021); text redacted."""
    import torch

    from crtlib.reports import leakage

    page, told = leakage.make(
        model,
        corpus,
        out,
        top_k=top_k,
        public=public,
        unit=unit,
        reveal=reveal,
        lengths_only=lengths_only,
        min_length=min_length,
        threshold=threshold,
        verbatim=verbatim,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    for name, value in told.items():
        print(f"{name:>40}  {'-' if value is None else value}")
    print(page)


@app.command()
def protect(
    incidence: Annotated[Path, typer.Argument(help="CSV or Parquet: example,secret[,p][,r].")],
    steps: Annotated[int, typer.Option(help="Steps of training.")],
    batch_size: Annotated[float, typer.Option(help="Expected size of a Poisson batch.")],
    prior: Annotated[
        float | None, typer.Option(help="Chance of a guess without the model, if no column p.")
    ] = None,
    posterior: Annotated[
        float | None, typer.Option(help="What training may raise it to, if no column r.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to, else that of the file's name + -plan.")
    ] = None,
    targets: Annotated[str, typer.Option(help="sqrt (ours) or linear (the paper's).")] = "sqrt",
    scale: Annotated[
        list[float],
        typer.Option(help="C: more keeps more, at more noise; inf keeps all; several: compare."),
    ] = (5.0,),
    accounting: Annotated[str, typer.Option(help="kl, or tight (slower, less noise).")] = "kl",
    mode: Annotated[str, typer.Option(help="reference, symmetric or replace.")] = "reference",
    show_secrets: Annotated[bool, typer.Option(help="Print names instead of numbers.")] = False,
) -> None:
    """Weights of examples, and the noise with which no secret is guessed more than promised."""
    from crtlib import files
    from crtlib.accounting import secrets as secrets_module
    from crtlib.accounting.incidence import read
    from crtlib.accounting.secrets import plan
    from crtlib.checks import check

    check("steps", steps, steps >= 1, "at least 1")
    held = read(incidence, prior=prior, posterior=posterior)
    given = (held.matrix, held.prior, held.posterior)
    options = {"steps": steps, "batch_size": batch_size, "targets": targets}
    options |= {"accounting": accounting, "mode": mode}
    if len(scale) > 1:
        table = secrets_module.sweep(*given, scales=scale, **options)
        print(table.to_string(index=False, float_format="{:.4g}".format))
        return
    made = plan(*given, scale=scale[0], **options)
    summary = made.summary() | {"incidence": incidence.name}
    out = out or incidence.with_name(f"{incidence.stem}-plan")
    for name, table in made.tables(held.examples, held.secrets).items():
        with files.replacing(out / f"{name}{incidence.suffix}") as part:
            save = table.to_csv if incidence.suffix == ".csv" else table.to_parquet
            save(part, index=False)
    finite = summary | {"scale": made.scale if made.scale < float("inf") else None}  # for JSON
    text = json.dumps(finite, indent=1)
    files.write_text(out / "plan.json", text + "\n")
    for name, value in summary.items():
        print(f"{name:>20}  {value:.6g}" if isinstance(value, float) else f"{name:>20}  {value}")
    print(f"\nbinding, {len(made.binding)} of {len(held.secrets)}:")
    names = held.secrets if show_secrets else None
    tight = accounting == "tight"
    for said in made.guarantees(made.binding[:5], names=names, tight=tight):
        print(said)
    print(f"\n{out}: weights{incidence.suffix}, secrets{incidence.suffix}, plan.json")


def main() -> None:
    """Run the command line; user mistakes become one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except RuntimeError as error:
        if type(error).__name__ != "UnfinishedError":
            raise
        print(f"crtlib: error: {error}", file=sys.stderr)
        raise SystemExit(3) from None
    except Exception as error:
        # format_message marks typer's own usage errors, which it would print as a box.
        usage = getattr(error, "format_message", None)
        if usage is None and not isinstance(error, (ValueError, OSError)):
            raise
        message = " ".join((usage() if usage else str(error)).split())
        if message:  # empty where typer has printed the help instead
            print(f"crtlib: error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
