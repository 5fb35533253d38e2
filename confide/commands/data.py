"""Commands on text: bring it in, make it, have people read it, judge and teach policies, screen it,
and plan what protects its secrets."""

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
    """Make a corpus of CSV, TSV, Parquet, JSONL, mail, text, and chats of Slack and WhatsApp.

    Rows are streamed: memory does not grow with the text. Columns are guessed by their names; the
    guess is printed, and asked for on a terminal. Rows that were left out are in rejected.csv.

    Example: crtlib ingest mails.csv --user customer --text body --skip-bad --out corpus

    Files:
        SOURCE: Files, folders, or hub:owner/name.
        --out: Folder of the corpus.
        --force: Replace a corpus that exists.
    Options:
        --format: How SOURCE is written: csv, tsv, parquet, jsonl, hub, mbox, eml, text,
            slack, whatsapp.
        --encoding: Codec such as cp1252; auto: byte order mark, UTF-8, UTF-16 or cp1252.
        --drop-quotes: Leave out what messages quote, in tables and chats as in mail.
        --skip-bad: Leave bad rows out, and count them.
        --max-bad: Share of bad rows that still passes.
        --limit: The first rows only.
        --split: Name of the split.
    Columns:
        --user: The person. [guessed]
        --thread: The conversation. [guessed]
        --speaker: Who speaks. [guessed]
        --text: What is said. [guessed]
        --time: When it was said. [guessed]
        --no-users: No person is known, or not in all rows of --user: a conversation is one.
        --agents A,...: Who answers, so that conversations stay whole: names, addresses, @domains.
        --dates: 3/4/2026 is dmy or mdy. [as other dates say, else refused]
        --rename N=B,...: Names for columns by number: 5=sent.
        --yes: Take the guessed columns without a question.
    """
    import click

    from confide.text import ingest as library

    def ask(shown: str) -> bool:
        print(shown, file=sys.stderr)
        return click.confirm("Are these the columns?", default=True, err=True)

    pairs = (part.partition("=") for part in rename.split(",") if part)
    summary = library.ingest_sources(
        source,
        out,
        format=format,
        columns={"user": user, "thread": thread, "speaker": speaker, "text": text, "time": time},
        no_users=no_users,
        agents=[name.strip().lower() for name in agents.split(",") if name.strip()],
        dates=dates,
        rename={place.strip(): name.strip() for place, _, name in pairs},
        encoding=encoding,
        drop_quotes=drop_quotes,
        skip_bad=skip_bad,
        max_bad=max_bad,
        limit=limit,
        split=split,
        yes=yes,
        ask=ask if sys.stdin and sys.stdin.isatty() else None,  # a daemon has none
        force=force,
        progress=True,
    )
    return CommandResult(asdict(summary), [library.format_ingest_summary(summary)])


def simulate(
    dialogues: int, out: Path, seed: int = 0, variety: str = "paper", force: bool = False
) -> CommandResult:
    """Simulate customer-service dialogues, with the place and kind of every secret.

    Files:
        --out: A file of JSON lines (.jsonl, .jsonl.gz), or a folder.
        --force: Replace results that exist.
    Options:
        --dialogues: Number of dialogues.
        --seed: Another seed, another split of the same world.
        --variety: Variety: paper (61 public turns) or rich.
    """
    from tqdm import tqdm

    from crtlib.text import corpus_folder, customersim

    check_allowed(
        "dialogues", dialogues, 1 <= dialogues <= 10**8, "at least 1 and at most 100,000,000"
    )
    write = corpus_folder.make_corpus_writer(out, force=force)
    options: dict[str, Any] = {"dialogues": dialogues, "seed": seed, "variety": variety}
    # Dialogue by dialogue, so that memory does not grow; no bar where nobody watches.
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
    """Write a known corpus as JSONL, or as a folder with a card; every other command reads both.

    Files:
        --out: A file of JSON lines (.jsonl, .jsonl.gz), or a folder.
        --folder: Instead of the corpus' own under $CRTLIB_DATA.
        --force: Replace results that exist.
    Options:
        NAME: Corpus: customersim, multiwoz, schema_guided, arxiv, wikitext2, ...
        --split: Split, as the corpus names it.
        --limit: At most so many dialogues.
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
    """Draw turns to be read, and say how many labels certify which bound.

    Example: crtlib label sample corpus --secrets 400 --teach 600 --out labels

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder of the labels.
        --force: Replace labels that exist.
    Options:
        --secrets: Users with a secret that are wanted in the judging part.
        --turns: Turns to read instead.
        --rate: Guess of the share of turns with a secret.
        --teach: Further turns, to teach a tagger.
        --by: What is drawn: user or dialogue; one turn each.
        --policy: Prefills the teaching part, half of which is where tagger:FOLDER doubts most.
        --seal: Policies of your own that these labels shall judge, as they are now, joined by +.
        --kinds: Kinds of secret, with commas between.
        --context: Turns shown before and after.
        --for: Form: page, jsonl or labelstudio; repeatable.
        --rules: What the page tells readers: a text file, a rule a line. [ours]
        --seed: Seed. [from the operating system]
    """
    from confide.labels import drawing, registry
    from crtlib.screening.policy_names import (
        available_policies,
        check_policy_files_known,
        parse_policy_name,
        policy_by_name,
        policy_digest,
    )

    listed = [next(parse_policy_name(part.strip()))[0] for part in (seal or "").split(",")]
    if len(listed) > 1 and all(kind in available_policies() for kind in listed):
        raise ValueError(f"--seal: {seal!r} must be joined by +, not by commas")
    try:
        told = files.read_text(rules, "utf-8-sig") if rules else ""
    except UnicodeDecodeError:
        raise ValueError(f"--rules: {rules} is not UTF-8") from None
    if seal:
        policy_by_name(seal)  # refuses what is none
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
        rules=told,
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
    """Bring in labels, checked against the text they were made for.

    Example: crtlib label import corpus labels-ann-20260301.json --labels labels

    Files:
        CORPUS: The corpus that the turns were drawn from.
        FILE: What the page or the tool exported.
        --labels: Folder of crtlib label sample.
    Options:
        --annotator: Who read them: a short name. [a; of later readers b, c, d]
        --role: Reader: first, undecided, second or decides; see crtlib label adjudicate.
        --partial: Accept unread turns; each counts as a secret on which a policy fails.
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
    """Write what is read next, so that no reader alone decides what is a secret.

    If the first reader left turns undecided, or unread, these for somebody else; bring them in with
    --role undecided. Then for a second reader: all turns with a mark and a random share of all, the
    marks not shown; bring them in with --role second. A mark of one reader alone then counts where
    a policy fails on it, and nowhere else, and what the first overlooked enters the bounds. Then,
    for --role decides, the turns on which the two differ, with all marks.

    Example: crtlib label adjudicate corpus --labels labels --out again

    Files:
        CORPUS: The corpus that the turns were drawn from.
        --labels: Folder of crtlib label sample.
        --out: Folder of what is to be read.
        --force: Replace a folder that exists.
    Options:
        --share: Share of all turns that the second reads whatever is marked.
        --for: Form: page, jsonl or labelstudio; repeatable.
    """
    from confide.labels import adjudication as library

    summary = library.write_adjudication(corpus, labels, out, share=share, forms=for_, force=force)
    return CommandResult(summary, [library.format_adjudication(summary)])


label = (
    "Draw turns to be read by people; bring in what they marked.",
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
    """Train a screening policy on labelled text, and say what it misses on other people's.

    Example: crtlib tagger corpus --labels labels --out tagger

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder for the tagger and summary.json.
        --force: Replace a tagger that exists.
    Options:
        --labels: Folder of crtlib label; repeatable: all teach, the first one judges.
        --unit: Data point: turn or dialogue.
        --heldout: Share of users to judge it on, without --labels.
        --epochs: Epochs. [14; 6 with a backbone]
        --backbone: Pre-trained encoder: minilm, a folder or hub id; none: from nothing. [minilm
            where crtlib[encoder] is installed]
        --threshold: Score from which it flags; the cautious one takes a third.
        --int8: Put the encoder in eight bits before it is judged: 0.6 of its time.
        --curve: Say by kind what another hour of reading would teach; takes as long again.
        --seed: Seed of the split and of training.
    """
    from confide.screening import teaching

    taught = teaching.teach_tagger(
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
    return CommandResult(facts, [taught.text() if taught else f"{out}: up to date"])


def card(
    corpus: Path,
    policy: str,
    labels: Path,
    out: Path,
    force: bool = False,
) -> CommandResult:
    """Say how often any detector misses, by kind, length, position and script, with bounds.

    Example: crtlib card corpus --policy presidio --labels labels --out card

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder of card.html, card.json and badge.svg.
        --force: Replace a card that exists.
    Options:
        --policy: The detector, any policy of crtlib screen; several joined by +.
        --labels: Folder of crtlib label, read.
    """
    from confide.reports import detector_card as library

    facts = library.write_detector_card(corpus, policy, out, labels=labels, force=force)
    return CommandResult(facts, [library.format_card(facts), f"{out}/card.html   {out}/badge.svg"])


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

    Policies: names (of people, streets and companies, by lists of eight languages), list:FILE,
    regex:FILE.toml, regex:CORPUS, tagger:FOLDER (from crtlib tagger), presidio, ner:MODEL,
    cautious, everything, none, oracle; tagger and ner also as tagger_conservative:FOLDER, which
    flags all that is not surely plain. Without --labels (from
    crtlib label) nothing is known of what was missed. The folder can be given to train, tagger and
    report in place of a corpus.

    Example: crtlib screen corpus --policy list:customers.csv+regex:ours.toml
    --conservative cautious --labels labels --out screened

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder of the screened corpus.
        --force: Replace a folder that exists.
    Options:
        --policy: Redaction policy pi; several, joined by +. [the corpus' own, if any]
        --conservative: Conservative policy pi_c.
        --labels: Folder of crtlib label, for the three rates.
        --unit: Data point: turn, dialogue or user.
        --gamma: Share of what pi flags to miss on purpose.
        --seed: Seed of the misses.
        --keep-ids: Leave ids and users in clear in the public part.
        --reveal: Examples of each kind, in clear, into a private page.
    Duplicates:
        --dedup: Scope: all (Algorithm 1), flagged or none.
        --dedup-by: Likeness: exact; bloom or near, without a certificate.
        --duplicates: Copies: mask_private (those of public points are left out) or mask (all).
    Speed and memory:
        --workers: Processes.
        --executor: Workers: processes:, threads:, dask://HOST:PORT or entry:MODULE:NAME.
    """
    from confide.reports import screening_page
    from confide.screening.corpus import ScreeningOptions, default_policy

    how = ScreeningOptions(
        policy or default_policy(corpus),
        conservative,
        unit,
        gamma,
        seed,
        dedup,  # type: ignore[arg-type]  # refused there where it is none of them
        dedup_by,  # type: ignore[arg-type]
        duplicates,  # type: ignore[arg-type]
        keep_ids,
    )
    with worker_pool(workers, executor) as pool:
        outcome = screening_page.screen_into_folder(
            corpus,
            out,
            how,
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
    """Weights of examples, and the noise with which no secret is guessed more than promised.

    C (--scale) is how much of each secret's text may stay: with several the command compares them
    and takes the one that keeps most text for its noise. crtlib train --plan trains with the plan.

    Example: crtlib protect corpus --secrets holders.csv --by user --posterior 0.1 --out plan

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Folder of the plan.
        --force: Replace a plan that exists.
    Options:
        --secrets: CSV or Parquet user,secret[,kind][,p][,r].
        --from-policy: Instead: each value that this policy flags.
        --by: What gets one promise: a value, or all that the values of a user touch.
        --unit: Data point: turn or dialogue.
        --prior: Chance of a guess without the model, if no column p.
        --posterior: What training may raise it to, if no column r.
        --steps: Steps of training. [8 passes]
        --batch-size: Expected size of a Poisson batch. [64]
        --scale: C: more keeps more, at more noise; inf keeps all; several: compare.
        --take: Of several scales, the one to write. [most for its noise]
    Accounting:
        --targets: Targets: sqrt (ours) or linear (the paper's).
        --neighbouring: Relation: reference, add_or_remove or replace.
    """
    from confide.training import secret_plans

    made = secret_plans.make_secret_plan(
        corpus,
        out,
        table=secrets,
        policy=from_policy,
        by=by,  # type: ignore[arg-type]  # refused there where it is neither
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
        made.text() if made else f"{out}: up to date",
        f"{out}: plan.json, weights.parquet; private: secrets, holders, names, key",
    ]
    return CommandResult(json.loads(files.read_bytes(out / "plan.json")), lines)
