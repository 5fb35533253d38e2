"""Commands on text: ingest it, simulate it, have people read it, judge and teach policies, screen
it, and plan what protects its secrets."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from confide.commands import WorkerCount, worker_pool
from crtlib import files
from crtlib.checks import check_allowed
from crtlib.options import CommandResult
from crtlib.values import NonNegativeInt, OpenProbability, PositiveInt

RENAMED_ARGUMENTS = {
    "ingest": {
        "sources": "SOURCE",
        **{f"columns[{role!r}]": role for role in ("user", "thread", "speaker", "text", "time")},
    },
    "label sample": {"forms": "for", "sealed": "seal"},
    "label adjudicate": {"forms": "for"},
    "protect": {"table": "secrets", "policy": "from_policy"},
}
"""The option for each argument that the library calls otherwise, by command."""


def ingest(
    source: list[Path],
    out: Path,
    format: str = "auto",
    user: str | None = None,
    thread: str | None = None,
    speaker: str | None = None,
    text: str | None = None,
    time: str | None = None,
    no_users: bool = False,
    agents: str = "",
    dates: str = "auto",
    rename: str = "",
    encoding: str = "auto",
    drop_quotes: bool = False,
    skip_bad: bool = False,
    max_bad: float = 0.05,
    limit: int | None = None,
    split: str = "train",
    yes: bool = False,
    force: bool = False,
) -> CommandResult:
    """Make a corpus from CSV, TSV, Parquet, JSONL, mail, text, or chats of Slack and WhatsApp.

    Rows are streamed, so memory does not grow with the text. Columns are guessed from their names;
    the guess is printed, and on a terminal you are asked to confirm it. Rows that were left out are
    listed in rejected.csv.

    Example: crtlib ingest mails.csv --user customer --text body --skip-bad --out corpus

    Files:
        SOURCE: Files, folders, or hub:owner/name.
        --out: Folder of the corpus.
        --force: Replace a corpus that exists.
    Options:
        --format: Format of SOURCE: csv, tsv, parquet, jsonl, hub, mbox, eml, text (a
            message a file), lines (a message a line), slack, whatsapp.
        --encoding: Codec of a table, JSON lines, text or chat of WhatsApp, such as cp1252; auto
            finds UTF-8, UTF-16, cp1252 or a byte order mark.
        --drop-quotes: Leave out what a message quotes; always done in mail.
        --skip-bad: Leave bad rows out, and count them.
        --max-bad (skip_bad): Largest share of bad rows that --skip-bad may leave out.
        --limit: Read only so many rows, the first ones.
        --split: Split to read, of the hub or of a folder of Parquet files; the corpus keeps its
            name.
    Columns:
        --user: Column of the person. [guessed]
        --thread: Column of the conversation. [guessed]
        --speaker: Column of who speaks. [guessed]
        --text: Column of what is said. [guessed]
        --time: Column of when it was said. [guessed]
        --no-users: Guess no column of the person; a conversation in which nobody is named counts as
            one person.
        --agents A,...: Names, addresses or @domains of those who answer; in a conversation of
            somebody else they do not count as persons of their own.
        --dates: Order of a date such as 3/4/2026: dmy or mdy. [as the other dates show; refused if
            none does]
        --rename N=B,...: New names of columns, by their number: 5=sent.
        --yes: Take the guessed columns without asking.
    """
    import click

    from confide.text.ingest import format_ingest_summary, ingest_sources

    def ask(columns_text: str) -> bool:
        print(columns_text, file=sys.stderr)
        return click.confirm("Are these the columns?", default=True, err=True)

    pairs = (part.partition("=") for part in rename.split(",") if part)
    summary = ingest_sources(
        source,
        out,
        format=format,
        columns={"user": user, "thread": thread, "speaker": speaker, "text": text, "time": time},
        no_users=no_users,
        agents=[name.strip().lower() for name in agents.split(",") if name.strip()],
        dates=dates,
        rename={old_name.strip(): name.strip() for old_name, _, name in pairs},
        encoding=encoding,
        drop_quotes=drop_quotes,
        skip_bad=skip_bad,
        max_bad=max_bad,
        limit=limit,
        split=split,
        yes=yes,
        ask=ask if sys.stdin and sys.stdin.isatty() else None,  # a daemon has no terminal
        force=force,
        progress=True,
    )
    return CommandResult(asdict(summary), [format_ingest_summary(summary)])


def simulate(
    dialogues: int, out: Path, seed: int = 0, variety: str = "paper", force: bool = False
) -> CommandResult:
    """Simulate customer-service dialogues, with the place and kind of every secret.

    Files:
        --out: A file of JSON lines (.jsonl, .jsonl.gz), or a folder.
        --force: Replace results that exist.
    Options:
        --dialogues: Number of dialogues.
        --seed: Seed; each draws other dialogues of the same customers and orders.
        --variety: Wording of the turns: paper (61 different public turns) or rich.
    """
    from tqdm import tqdm

    from crtlib.text import corpus_folder, customersim

    check_allowed(
        "dialogues", dialogues, 1 <= dialogues <= 10**8, "at least 1 and at most 100,000,000"
    )
    write = corpus_folder.make_corpus_writer(out, force=force)
    options: dict[str, Any] = {"dialogues": dialogues, "seed": seed, "variety": variety}
    # Dialogue by dialogue, so that memory does not grow; no bar if nobody watches.
    stream = tqdm(
        customersim.stream_dialogues(dialogues, seed, variety), total=dialogues, disable=None
    )
    write(stream, command="simulate", options=options, simulated=True, policy="regex:customersim")
    line = f"{out}: {dialogues} dialogues, variety {variety}, seed {seed}"
    return CommandResult({"file": out, **options}, [line])


def convert(
    name: str,
    out: Path,
    split: str = "train",
    folder: Path | None = None,
    limit: int | None = None,
    force: bool = False,
) -> CommandResult:
    """Write a corpus that crtlib knows as JSONL, or as a folder with a card.

    Every other command reads both.

    Files:
        --out: A file of JSON lines (.jsonl, .jsonl.gz), or a folder.
        --folder: Where the corpus is. [its folder under $CRTLIB_DATA]
        --force: Replace results that exist.
    Options:
        NAME: Corpus: customersim, multiwoz, schema_guided, arxiv, wikitext2, ...
        --split: Split to write, by the corpus' own name for it.
        --limit: Write at most so many dialogues.
    """
    from collections import Counter

    from crtlib.text import corpus_folder
    from crtlib.text.corpora import available_corpora, find_source, load_corpus

    if name not in available_corpora() and Path(name).exists():
        raise ValueError(f"NAME: {name} is a text of your own, which every command reads; convert "
                         f"takes {', '.join(available_corpora())}")  # fmt: skip
    write = corpus_folder.make_corpus_writer(
        out, inputs=[] if folder is None else [folder], force=force
    )
    corpus = load_corpus(name, split, folder=folder, limit=limit)
    options = {"name": name, "split": split, "limit": limit}
    write(
        corpus.dialogues, command="convert", options=options, split=split,
        simulated=find_source(name).draw is not None,
    )  # fmt: skip
    turns = list(corpus.turns())
    private = sum(bool(turn.secrets) for turn in turns)
    kinds = Counter(secret.kind for turn in turns for secret in turn.secrets)
    counts = {"dialogues": len(corpus), "turns": len(turns), "turns_with_a_secret": private}
    return CommandResult(
        {"file": out, **counts, "kinds": kinds, "left_out": dict(corpus.skipped)},
        [
            f"{out}: {len(corpus)} dialogues, {len(turns)} turns, {private} of them with a secret",
            *(f"{kind:>12} {count}" for kind, count in sorted(kinds.items())),
            *(f"left out: {count} ({reason})" for reason, count in corpus.skipped),
        ],
    )


# --------------------------------------------------------------------------- labels
def sample(
    corpus: Path,
    out: Path,
    secrets: int = 400,
    turns: int | None = None,
    rate: float | None = None,
    teach: int = 0,
    by: str = "user",
    policy: str | None = None,
    seal: str | None = None,
    kinds: str = "name,address,phone,id,other",
    context: int = 2,
    for_: tuple[str, ...] = ("page",),
    rules: Path | None = None,
    seed: int | None = None,
    force: bool = False,
) -> CommandResult:
    """Draw turns for people to read, and print the bounds that so many labels can certify.

    Example: crtlib label sample corpus --secrets 400 --teach 600 --out labels

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder of the labels.
        --force: Replace labels that exist.
    Options:
        --secrets (no turns): Users with a secret to aim for in the part that judges policies.
        --turns: Turns in that part, instead of --secrets.
        --rate (no turns): Your guess of the share of turns with a secret. [the share that --policy
            flags, else 0.25]
        --teach: Further turns, in a part that teaches a tagger.
        --by: Draw by user or by dialogue; one turn is taken from each.
        --policy: Policy that marks secrets in advance, in the teaching part only; half of that part
            is then where the policy is least sure.
        --seal: Your own policies that these labels will judge, joined by +; they are recorded as
            they are now.
        --kinds: Kinds of secret, separated by commas.
        --context: Turns shown before and after the one to read.
        --for: Form: page, jsonl or labelstudio; repeatable.
        --rules: Text file of what the page tells readers, one rule on each line. [ours]
        --seed: Seed. [from the operating system]
    """
    from confide.labels import drawing, registry
    from crtlib.screening.policy_digests import check_policy_files_known, policy_digest
    from crtlib.screening.policy_names import available_policies, parse_policy_name, policy_by_name
    from crtlib.text.encodings import describe_recoding

    listed_kinds = [next(parse_policy_name(part.strip()))[0] for part in (seal or "").split(",")]
    if len(listed_kinds) > 1 and all(kind in available_policies() for kind in listed_kinds):
        raise ValueError(f"--seal: {seal!r} must be joined by +, not by commas")
    try:
        rules_text = files.read_text(rules, "utf-8-sig") if rules else ""
    except UnicodeDecodeError:
        raise ValueError(f"--rules: {rules} is not UTF-8; {describe_recoding(rules)}") from None
    if seal:
        policy_by_name(seal)  # refuses an unknown policy
        check_policy_files_known(seal)

    flags = policy_by_name(policy) if policy else None
    doubt = drawing.policy_disagreement(flags, policy_by_name("cautious")) if flags else None
    for part in (policy or "").split("+"):
        if part.startswith("tagger:"):
            from crtlib.screening.tagger import load_tagger

            doubt = load_tagger(part.removeprefix("tagger:")).doubt
    summary = drawing.draw_label_tasks(
        corpus,
        out,
        secrets=secrets,
        turns=turns,
        rate=rate,
        teach=teach,
        by=by,
        policy=flags,
        doubt=doubt,
        sealed=[policy_digest(part) for part in seal.split("+")] if seal else [],
        kinds=[kind.strip() for kind in kinds.split(",")],
        context=context,
        forms=for_,
        rules=rules_text,
        seed=seed,
        force=force,
    )
    return CommandResult(summary, [registry.format_drawn_summary(summary)])


def label_import(
    corpus: Path,
    file: Path,
    labels: Path,
    annotator: str | None = None,
    role: str = "first",
    partial: bool = False,
) -> CommandResult:
    """Import labels, and check them against the text that they were made for.

    Example: crtlib label import corpus labels-ann-20260301.json --labels labels

    Files:
        CORPUS: The corpus that the turns were drawn from.
        FILE: The file that the page, or your tool, exported.
        --labels: Folder of crtlib label sample.
    Options:
        --annotator: Short name of the reader. [a; later readers b, c, d]
        --role: Role of the reader: first, undecided, second or decides; see crtlib label
            adjudicate.
        --partial: Accept turns that nobody read; each counts as a secret on which a policy fails.
    """
    from confide.labels import imports, judged_turns

    summary = imports.import_labels(
        corpus, file, labels, annotator=annotator, role=role, partial=partial
    )
    return CommandResult(summary, [judged_turns.format_import_summary(summary)])


def adjudicate(
    corpus: Path,
    labels: Path,
    out: Path,
    share: float = 0.2,
    for_: tuple[str, ...] = ("page",),
    force: bool = False,
) -> CommandResult:
    """Write what is to be read next, so that no reader alone decides what is a secret.

    Each call writes one round of reading, which crtlib label import brings in. First, for --role
    undecided: the turns that the first reader left undecided or unread, if any, for somebody else.
    Next, for --role second: all turns with a mark and a random share of all turns, without the
    marks. A mark that only one reader made then counts only where a policy fails on it, and what
    the first reader overlooked enters the bounds. Last, for --role decides: the turns on which the
    two differ, with all marks.

    Example: crtlib label adjudicate corpus --labels labels --out again

    Files:
        CORPUS: The corpus that the turns were drawn from.
        --labels: Folder of crtlib label sample.
        --out: Folder for what is to be read.
        --force: Replace a folder that exists.
    Options:
        --share: Share of all turns that the second reader reads, marked or not.
        --for: Form: page, jsonl or labelstudio; repeatable.
    """
    from confide.labels.adjudication import format_adjudication, write_adjudication

    summary = write_adjudication(corpus, labels, out, share=share, forms=for_, force=force)
    return CommandResult(summary, [format_adjudication(summary)])


label = (
    "Draw turns for people to read, and import what they marked.",
    {"sample": sample, "import": label_import, "adjudicate": adjudicate},
)


# --------------------------------------------------------------------------- policies
def tagger(
    corpus: Path,
    out: Path,
    labels: tuple[Path, ...] = (),
    unit: str = "turn",
    heldout: OpenProbability = 0.3,
    epochs: PositiveInt | None = None,
    backbone: str | None = None,
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.3,
    int8: bool = False,
    curve: bool = False,
    seed: NonNegativeInt = 0,
    force: bool = False,
) -> CommandResult:
    """Train a tagger, a policy that learns from labels, and report what it misses.

    What it misses is counted on the text of people from whom it did not learn.

    Example: crtlib tagger corpus --labels labels --out tagger

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder for the tagger and summary.json.
        --force: Replace a tagger that exists.
    Options:
        --labels: Folder of crtlib label; repeatable: all teach, only the first judges.
        --unit: Data point: turn or dialogue.
        --heldout (no labels): Without --labels: share of the users on whom it is judged.
        --epochs: Passes over the labelled text. [14; 6 with a backbone]
        --backbone: Pre-trained encoder to start from: minilm, a folder or a hub id; none starts
            from random weights. [minilm where crtlib[encoder] is installed, else none]
        --threshold: Score from which it flags; tagger_conservative:FOLDER flags from a third of it.
        --int8: Store the encoder in eight bits before it is judged; it then takes 0.6 of the time.
        --curve: Report for each kind what another hour of reading would teach; takes as long again.
        --seed: Seed of the split and of training.
    """
    from confide.screening import teaching

    outcome = teaching.teach_tagger(
        corpus,
        out,
        labels=labels,
        unit=unit,
        judging_share=heldout,
        epochs=epochs,
        backbone=backbone,
        threshold=threshold,
        int8=int8,
        curve=curve,
        seed=seed,
        force=force,
        progress=True,
    )
    facts = json.loads(files.read_bytes(out / "summary.json"))
    return CommandResult(facts, [outcome.text() if outcome else f"{out}: up to date"])


def card(
    corpus: Path,
    policy: str,
    labels: Path,
    out: Path,
    force: bool = False,
) -> CommandResult:
    """Report how often a detector misses, by kind, length, position and script, with bounds.

    Example: crtlib card corpus --policy presidio --labels labels --out card

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder of card.html, card.json and badge.svg.
        --force: Replace a card that exists.
    Options:
        --policy: The detector: any policy of crtlib screen, or several joined by +.
        --labels: Folder of crtlib label, after somebody has read it.
    """
    from confide.reports.detector_card import format_card, write_detector_card

    facts = write_detector_card(corpus, policy, out, labels=labels, force=force)
    return CommandResult(facts, [format_card(facts), f"{out}/card.html   {out}/badge.svg"])


def screen(
    corpus: Path,
    out: Path,
    policy: str | None = None,
    conservative: str = "everything",
    labels: Path | None = None,
    unit: str = "turn",
    gamma: float = 0.0,
    seed: int = 0,
    dedup: str = "all",
    dedup_by: str = "exact",
    duplicates: str = "mask_private",
    keep_ids: bool = False,
    reveal: NonNegativeInt = 0,
    workers: WorkerCount = 1,
    executor: str = "processes:",
    force: bool = False,
) -> CommandResult:
    """Deduplicate, redact and split a corpus into public and private points (Algorithm 1).

    Policies: names (of people, streets and companies, from lists in eight languages), list:FILE,
    regex:FILE.toml, regex:CORPUS, tagger:FOLDER (from crtlib tagger), presidio, ner:MODEL,
    cautious, everything, none and oracle. tagger_conservative:FOLDER and ner_conservative:MODEL
    also flag whatever is not surely plain. Without --labels (from crtlib label) it is not known
    what was missed. Give the screened folder to train, tagger or report in place of a corpus.

    Example: crtlib screen corpus --policy list:customers.csv+regex:ours.toml
    --conservative cautious --labels labels --out screened

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder of the screened corpus.
        --force: Replace a folder that exists.
    Options:
        --policy: Redaction policy pi; several, joined by +. [the corpus' own, if any]
        --conservative: Conservative policy pi_c: a point in which it flags nothing is public, and
            is trained on without noise.
        --labels: Folder of crtlib label, on which the three rates are counted.
        --unit: Data point: turn, dialogue or user.
        --gamma: Share of what pi flags that is missed on purpose.
        --seed (gamma): Seed of the misses on purpose.
        --keep-ids: Keep the ids and users of the public part readable; else they are pseudonyms.
        --reveal: Write so many examples of each kind, in clear, to a private page.
    Duplicates:
        --dedup: Which points are deduplicated: all (Algorithm 1), flagged or none.
        --dedup-by (dedup!=none): What counts as a copy: exact, or bloom or near, which no
            certificate allows.
        --duplicates (dedup!=none): mask_private masks copies of private points and leaves out those
            of public ones; mask masks all (Algorithm 1).
    Speed and memory:
        --workers: Number of processes.
        --executor: Where they run: processes:, threads:, dask://HOST:PORT or entry:MODULE:NAME.
    """
    from confide.reports import screening_page
    from confide.screening.corpus_screening import ScreeningOptions, default_policy

    options = ScreeningOptions(
        policy or default_policy(corpus),
        conservative,
        unit,
        gamma,
        seed,
        dedup,  # type: ignore[arg-type]  # refused there if it is none of them
        dedup_by,  # type: ignore[arg-type]
        duplicates,  # type: ignore[arg-type]
        keep_ids,
    )
    with worker_pool(workers, executor) as pool:
        outcome = screening_page.screen_into_folder(
            corpus,
            out,
            options,
            labels=labels,
            reveal=reveal,
            force=force,
            executor=pool,
            progress=True,
        )
    summary = json.loads(files.read_bytes(out / "summary.json"))
    lines = [f"{out}: up to date"]
    if outcome is not None:
        examples = f"   {out}/private/examples.html" if reveal else ""
        lines = [screening_page.format_screening(outcome), f"{out}/screening.html{examples}"]
    return CommandResult(summary, lines)


def protect(
    corpus: Path,
    out: Path,
    secrets: Path | None = None,
    from_policy: str | None = None,
    by: str = "value",
    unit: str = "turn",
    prior: float = 0.001,
    posterior: float | None = None,
    steps: int | None = None,
    batch_size: float | None = None,
    scale: tuple[float, ...] = (2.0, 5.0, 10.0, float("inf")),
    take: float | None = None,
    targets: str = "sqrt",
    neighbouring: str = "reference",
    force: bool = False,
) -> CommandResult:
    """Plan how often each example is drawn, and the noise, so that no secret is guessed more often
    than promised.

    C (--scale) sets how much of each secret's text may stay. If you give several, they are
    compared, and the plan takes the one that keeps the most text for its noise. Train with the plan
    by crtlib train --plan.

    Example: crtlib protect corpus --secrets holders.csv --by user --posterior 0.1 --out plan

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder of the plan.
        --force: Replace a plan that exists.
    Options:
        --secrets: Table of the secrets, CSV or Parquet: user,secret[,kind][,p][,r].
        --from-policy: Instead of --secrets: take each value that this policy flags.
        --by: What gets one promise: value, or user (all examples that hold a value of the user).
        --unit: Data point: turn or dialogue.
        --prior: Chance of guessing a secret without the model, where there is no column p.
        --posterior: The chance that training may raise it to, where there is no column r.
        --steps: Steps of training. [8 passes over the points]
        --batch-size: Expected size of a batch, drawn by Poisson sampling. [64]
        --scale: C: a larger one keeps more text and needs more noise; inf keeps all; repeatable, to
            compare.
        --take: Which of several scales to use. [the one that keeps most for its noise]
    Accounting:
        --targets: How a secret's limit grows with what its promise allows: sqrt (ours) or linear
            (the paper's).
        --neighbouring: Neighbouring relation: reference, add_or_remove or replace.
    """
    from confide.training import secret_plans

    plan = secret_plans.make_secret_plan(
        corpus,
        out,
        table=secrets,
        policy=from_policy,
        by=by,  # type: ignore[arg-type]  # refused there if it is neither
        unit=unit,
        prior=prior,
        posterior=posterior,
        steps=steps,
        batch_size=batch_size,
        scales=scale,
        take=take,
        targets=targets,
        neighbouring_relation=neighbouring,
        force=force,
    )
    lines = [
        plan.text() if plan else f"{out}: up to date",
        f"{out}: plan.json, weights.parquet; private: secrets, holders, names, key",
    ]
    return CommandResult(json.loads(files.read_bytes(out / "plan.json")), lines)
