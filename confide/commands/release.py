"""Commands on releases: what a training may promise, what it has spent, what a model shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.commands import WorkerCount, worker_pool
from crtlib import files, outputs
from crtlib.checks import check_choice, check_delta, parse_whole_numbers
from crtlib.intervals import at_most, count_of
from crtlib.options import CommandResult
from crtlib.values import NonNegativeFloat, OpenProbability, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from crtlib.accounting.events import GroupSizes, SampledGaussian

RENAMED_ARGUMENTS = {
    "audit": {"references": "reference"},
    "certify": {"audience": "for", "standard": "evidence"},
}
"""The option for each argument that the library calls otherwise, by command."""


def advise(
    corpus: Path,
    labels: Path,
    require: tuple[str, ...] = (),
    policy: tuple[str, ...] = (),
    conservative: tuple[str, ...] = ("cautious", "everything"),
    unit: tuple[str, ...] = ("turn",),
    hours: NonNegativeFloat = 0.0,
    epochs: PositiveInt | None = None,
    init: str | None = None,
    out: Path | None = None,
    force: bool = False,
) -> CommandResult:
    """Find the policies and the noise that meet your limits, and what that costs or still needs.

    Rates are counted on labels, never assumed. Each pair of policies that is tried widens all
    bounds a little; the certificate of a plan will have the same numbers. The page is private (mode
    0600). The exit code is 4 where nothing meets the limits.

    Example: crtlib advise corpus --labels labels --require "public <= 1%" --require "guess <= 55"

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Page to write, with a picture of the chance of a right guess at each epsilon.
        --force: Replace the page that is there.
    Options:
        --labels: Folder of crtlib label, after somebody has read it.
        --require LIMIT: A limit, such as 'public <= 1%' or 'guess <= 55'; repeatable.
        --policy: Redaction policy to try; repeatable. [the corpus' own, if any]
        --conservative: Conservative policy to try with each; repeatable.
        --unit: Data point to try: turn, dialogue or user; repeatable.
        --hours: Hours for which people can still read.
        --epochs: Passes over the points, as for crtlib train.
        --init: Where the weights start, as for crtlib train.
    """
    from confide.training.advise import advise_on_limits

    if out:
        outputs.check_output_file(out, inputs=(corpus, labels), force=force)
    advice = advise_on_limits(
        corpus,
        labels,
        require,
        policies=policy,
        conservative=conservative,
        units=unit,
        hours=hours,
        epochs=epochs,
        init=init,
    )
    if out:
        files.write_text(out, advice.page(), mode=outputs.PRIVATE_FILE_MODE)
    return CommandResult(advice.json(), [advice.text()])


def certify(
    run: Path,
    out: Path,
    for_: str = "both",
    name: str | None = None,
    audit: Path | None = None,
    report: Path | None = None,
    secrets_per_person: str = "5,20",
    require: tuple[str, ...] = (),
    evidence: str | None = None,
    odometer: Path | None = None,
    verify: bool = False,
    force: bool = False,
) -> CommandResult:
    """Certify what a model may give away: one sheet in plain words, all numbers, and JSON.

    Earlier private runs on the same text, which its odometer lists, are composed with this one. The
    exit code is 4 where the certificate is void or promises nothing, where it does not meet a limit
    of --require or, with --verify, where anything differs.

    Example: crtlib certify run --out certificate.html

    Files:
        RUN: Folder that crtlib train wrote.
        --out: The page; its JSON gets the same name.
        --odometer: Odometer of the run, if it was moved since.
        --force (no verify): Replace what is there.
    Options:
        --for (no verify): Readers of the page: officer, engineer or both.
        --name (no verify): Name of the model. [its folder]
        --secrets-per-person (no verify): For each number, a row on a person with that many secrets,
            or on a secret that is said that often.
        --require LIMIT: A limit, such as 'public <= 1%' or 'guess <= 55'; repeatable.
        --verify: Write nothing; compare the certificate that is there with the run.
    Evidence:
        --audit (no verify): Attach an audit: audit.json of crtlib audit.
        --report (no verify): Attach a report: the folder of crtlib report.
        --evidence STANDARD: Also write, for each requirement of a standard, whether the certificate
            shows it met, not met, or not ours (aisvs: OWASP AISVS on privacy).
    """
    from confide.release import certify, limits
    from confide.reports import standards

    if verify:
        difference, value = certify.compare_certificate_with_run(
            run, out, odometer_folder=odometer, standard=evidence
        )
        if require:  # limits other than those it was written with
            value = value | {"limits": limits.judge_limits(value, require)}
    else:
        difference = None
        value = certify.write_certificate(
            run,
            out,
            name=name,
            audience=for_,
            audit=audit,
            report=report,
            odometer_folder=odometer,
            secrets_per_person=parse_whole_numbers("secrets_per_person", secrets_per_person),
            require=require,
            standard=evidence,
            force=force,
        )
    verdict = str(value["verdict"])
    limit_rows = value.get("limits", [])
    keeps_promise = verdict == "holds" and all(row["met"] for row in limit_rows)
    facts = {
        "ok": not difference and keeps_promise,
        "id": value["id"],
        "verdict": verdict,
        "limits": limit_rows,
    }
    line = f"{'verified' if verify else out}: {certify.summarise_certificate(value)}"
    if difference:
        line = f"verification failed: {difference}"
    lines = [line]
    if evidence and not difference:
        evidence_page, _ = certify.name_evidence_files(Path(out).with_suffix(".html"), evidence)
        counts = standards.assemble_evidence(value, evidence)["counts"]
        facts["evidence"] = counts
        lines += [f"{evidence_page}: {', '.join(f'{n} {status}' for status, n in counts.items())}"]
    return CommandResult(facts | {"difference": difference}, lines)


def audit(
    run: Path,
    corpus: Path,
    out: Path,
    reference: tuple[Path, ...] = (),
    claim: PositiveFloat | None = None,
    guesses: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    force: bool = False,
) -> CommandResult:
    """Audit one training with many invented secrets, each planted once.

    Each secret has a control that was not planted, and the attacker guesses which of the two the
    model has read. The exit code is 4 where the guesses show more than the proof allows. Prints an
    upper bound on how often the audit would detect a training with half the declared noise. Where
    that bound is low, or the attacker did no better than a coin, it prints "says nothing".

    Example: crtlib audit run --corpus dialogues.jsonl --out audit

    Files:
        RUN: Folder of crtlib train --canaries auto, or --canaries N --copies 1.
        --corpus: The text on which it was trained.
        --out: Folder for audit.json.
        --force: Replace an earlier audit.
    Options:
        --reference: Folder of a model that has not read the canaries; repeatable.
        --claim: Test this epsilon, claimed for every secret, instead of what is proved.
        --guesses: Number of canaries that are guessed. [five numbers are tried]
        --confidence: Confidence of the lower bound, in (0, 1).
        --seed: Seed of the audit's coins. [they follow from the run and its weights]
    """
    from functools import partial

    from confide import attack_ledger
    from confide.release import seal
    from crtlib.attacks import run_audit
    from crtlib.models.tensor_files import hash_tensors

    record_paths = map(run_audit.find_record, (run, *reference))
    # An edited record is refused.
    record, *_ = [path and seal.read_signed(path) for path in record_paths]
    ledgers, tensors = attack_ledger.find_ledgers(record), str(hash_tensors(run))
    audited = run_audit.audit_training(
        run, corpus, out, references=reference, claim=claim, guesses=guesses,
        confidence=confidence, seed=seed, force=force,
        enter=partial(attack_ledger.enter_attack, ledgers, "audit", tensors),
    )  # fmt: skip
    audit_count = len(attack_ledger.list_attacks(ledgers, "audit", tensors))
    lines = audited.lines()
    if audit_count > 1:
        count = f"{audit_count} audits of this model were made"
        lines.append(f"{count}: a certificate has the largest bound")
    facts = {"ok": not audited.refuted, **audited.to_json(), "made": audit_count}
    return CommandResult(facts, lines)


def report(
    model: Path,
    corpus: Path,
    out: Path,
    top_k: int = 3,
    public: Path | None = None,
    unit: str | None = None,
    reveal: bool = False,
    lengths_only: bool = False,
    min_length: int = 1,
    threshold: float | None = None,
    verbatim: bool = False,
    template: str | None = None,
    prefix_scan: bool = False,
    workers: WorkerCount = 1,
    force: bool = False,
) -> CommandResult:
    """Report what a model completes of its training text, by user (Inan et al. 2021).

    Text is redacted unless you ask for it with --reveal.

    Files:
        MODEL: Folder of a model of crtlib train or transformers.
        --corpus: The training dialogues: folder or JSONL.
        --out: Folder for report.html, report.json and Parquet tables.
        --public: Folder of a public model to compare with.
        --force: Replace results that exist, or write another report of the same model.
    Options:
        --top-k: Guesses for each token that an attacker sees; 1 is the tab attack.
        --unit: What one text is: turn or dialogue. [as trained, or turn]
        --reveal: Write text in clear.
        --lengths-only: Write only lengths and counts, no users and no labels.
        --min-length: Tokens in the shortest completed run that counts.
        --threshold: Ratio t of metric 2; needs --public.
        --verbatim: Leave out runs at the end of a text, as the paper's Algorithm 1 does.
        --template: How turns became text: chat, plain, speaker or FILE.j2. [as trained, the
            tokenizer's, or what the model reads most easily]
        --prefix-scan: Read each text after every known beginning.
    Speed and memory:
        --workers: Number of processes.
    """
    import torch

    from confide.reports import leakage

    with worker_pool(workers) as executor:
        page, summary = leakage.make_leakage_report(
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
            template=template,
            prefix_scan=prefix_scan,
            device="cuda" if torch.cuda.is_available() else "cpu",
            force=force,
            executor=executor,
        )
    if warning := summary.get("warning"):
        print(f"warning: {warning}", file=sys.stderr)
    shown_values = {k: "-" if v is None else v for k, v in summary.items() if k != "warning"}
    lines = [f"{name:>40}  {value}" for name, value in shown_values.items()]
    return CommandResult({"page": page, **summary}, [*lines, str(page)])


# --------------------------------------------------------------------------- what is spent
def account(
    delta: float | None = None,
    batch_size: float | None = None,
    points: int | None = None,
    epochs: float | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    gamma: float = 1.0,
    delta2: float = 0.0,
    secrets_per_person: str = "1,5,20",
    accountant: str = "pld",
    neighbouring: str = "replace",
    unit: str = "point",
    before: Path | None = None,
    odometer: Path | None = None,
    strike: str | None = None,
    because: str = "",
    forget: bool = False,
) -> CommandResult:
    """Compute the noise for a target epsilon (or the reverse), and the confidentiality of redacted
    secrets.

    With --before, which needs --unit turn, dialogue or user, also print what a certificate of this
    run would state after the earlier runs on the same text; --gamma and --delta2 are then added to
    the rates of the earlier runs, as those of another screening. With --odometer, list the private
    runs on one text and what they have spent together. Both count earlier runs on text of the same
    people, as far as your registry knows them.

    Example: crtlib account --delta 1e-5 --batch-size 512 --points 46080 --epochs 4 --epsilon 3

    Options:
        --delta: Delta of one point, in (0, 1).
        --batch-size (no odometer): Expected size of a batch.
        --points (no odometer): Private data points.
        --epochs (no odometer): Expected passes over the points.
        --epsilon (no odometer): Target epsilon of DP-SGD.
        --noise-multiplier (no odometer): Noise multiplier of DP-SGD, instead of --epsilon.
        --gamma (no odometer): Trace rate: share of secrets that leave a trace after redaction.
        --delta2 (no odometer): Public rate: share of secrets trained on without noise; it is added
            to delta.
        --secrets-per-person (no odometer): For each number, a row on a person with that many
            secrets, or on a secret that is said that often.
        --accountant (no odometer): Accountant: pld, rdp, prv or autodp.
        --neighbouring (no odometer): Neighbouring relation: replace, or add_or_remove (as in the
            paper).
        --unit (no odometer): What one data point is, for the record.
    What was spent:
        --before (no odometer): Odometer of earlier runs, which are composed with this one.
        --odometer: Only print what the runs in this odometer have spent.
        --strike (odometer): With --odometer: strike out the entry with this hash, of a model that
            nobody saw.
        --because (strike): Reason for --strike.
        --forget (odometer): With --odometer: forget whose text it is; its runs stay.
    """
    from crtlib.accounting import confidentiality
    from crtlib.accounting.events import SampledGaussian

    if odometer is not None:
        return _report_odometer(odometer, strike, because, 1e-6 if delta is None else delta, forget)
    if delta is None or batch_size is None or points is None or epochs is None:
        raise ValueError("account: needs --delta, --batch-size, --points and --epochs")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("epsilon, noise-multiplier: give exactly one of the two")
    check_delta(delta)
    accounted: dict[str, Any] = confidentiality.account_training(
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        noise_delta=delta,
        batch_size=batch_size,
        points=points,
        epochs=epochs,
        gamma=gamma,
        delta2=delta2,
        accountant=accountant,
        neighbouring_relation=neighbouring,
    )
    accounted["unit"] = unit
    run = SampledGaussian(
        accounted["sampling_probability"], accounted["noise_multiplier"], accounted["steps"]
    )
    counts = parse_whole_numbers("secrets_per_person", secrets_per_person)
    accounted["by_copies"] = _guesses_by_copies(
        counts, (run,), 1, accounted["gamma"], accounted["delta2"]
    )
    if before is not None:
        accounted["together"] = _account_with_earlier_runs(accounted, run, before, counts)
    lines = _account_lines(accounted)
    if accounted["accountant"] != accountant:
        bound = f"the bound is that of {accounted['accountant']}"
        lines.append(f"{accountant} has no answer here, or a larger one: {bound}")
    return CommandResult(accounted, lines)


def _report_odometer(
    folder: Path, strike: str | None, because: str, delta: float, forget: bool
) -> CommandResult:
    from confide import odometer, spending, text_registry
    from confide.labels.registry import forget_draws
    from confide.release import certifiable_run, rate_bounds

    registry = text_registry.Registry(text_registry.registry_folder())
    if strike is not None:
        odometer.strike_run(folder, strike, because=because, registry=registry)
    entries = odometer.read_entries(folder)
    if forget:
        text = odometer.read_corpus_hash(folder)
        if text is None:
            raise ValueError(f"--forget: {folder} does not state which text it is for")
        registry.forget(text)
        forget_draws(text)
    bill = spending.report_spending(
        rate_bounds.with_current_bounds(spending.read_odometer_history(folder, registry)),
        delta=delta,
    )
    bill["forgotten"] = registry.count_forgotten_texts(entries[0].corpus) if entries else 0
    lines = []
    for run in bill["runs"]:
        spent_text = "unprotected" if run["epsilon"] is None else f"epsilon {run['epsilon']}"
        note = f"  ({run['because']})" if run["because"] else ""
        note += f"  (void: {' '.join(run['void_because'])})" if run["void_because"] else ""
        lines.append(
            f"{run['entry'][:12]}  {run['time']}  {run['state']:<8}  {run['method']:<10} "
            f"{run['unit']:<8} {spent_text}{note}"
        )
    total, unit = bill["together"], bill["unit"]
    lines += [
        f"together  epsilon {total['epsilon']} at delta {delta:g} of one {unit} in clear",
        f"          trace rate at most {at_most(total['gamma'])}, public at most "
        f"{at_most(total['delta2'])}",
    ]
    if run_count := bill["leave_out_repeats"]:
        runs = "a run" if run_count == 1 else f"{run_count} runs"
        lines.append(f"too little: {runs} of crtlib 0.3, {certifiable_run.UNCOUNTED_REPEATS_NOTE}")
    if run_count := bill["unsaid"]:
        runs = "a run" if run_count == 1 else f"{run_count} runs"
        lines.append(
            f"not counted: the noise of {runs} of an older crtlib, which did not record whether "
            "the promise was void; strike what nobody ever saw: --strike ENTRY --because WHY"
        )
    if bill["forgotten"] and not forget:
        lines.append(
            f"not added: runs of {count_of(bill['forgotten'], 'text that was', 'texts that were')} "
            "forgotten, for which nobody knows whether they were of the same people"
        )
    if forget:
        lines.append(
            "forgotten: a certificate of a later run on another text of the same people does not "
            "add these runs, and states the assumption that nobody of that text is in this one"
        )
    return CommandResult(bill, lines)


def leaver(
    corpus: Path,
    user: str,
    out: Path | None = None,
    delta: OpenProbability = 1e-6,
    force: bool = False,
) -> CommandResult:
    """State what the models of a text promise about one person who leaves, and what it would take
    to train again without them.

    It covers all models that the odometer of the text and your registry know. The page is private
    (mode 0600), for whoever decides, and does not name the person.

    Example: crtlib leaver corpus --user 1042 --out leaver.html

    Files:
        CORPUS: Corpus folder or JSONL.
        --out: Page to write.
        --force: Replace the page that is there.
    Options:
        --user: The person who leaves, as the corpus names them.
        --delta: Delta at which the epsilons are given.
    """
    from confide.release.leaver import describe_leaver, format_leaver, render_leaver_page

    if out:
        outputs.check_output_file(out, inputs=(corpus,), force=force)
    facts = describe_leaver(corpus, user, delta=delta)
    lines = format_leaver(facts)
    if out:
        page = render_leaver_page(facts)
        files.write_text(out, page, mode=outputs.PRIVATE_FILE_MODE)
        lines.append(str(out))
    return CommandResult(facts, lines)


def _account_with_earlier_runs(
    accounted: dict, event: SampledGaussian, folder: Path, counts: list[int]
) -> dict[str, Any]:
    """What a certificate of this run adds: all that was spent on the text before, for its unit."""
    from confide import odometer_lines, spending, text_registry
    from confide.release import composed_promise, file_sources, rate_bounds, source_fold

    unit = accounted["unit"]
    check_choice("unit", unit, odometer_lines.PRIVACY_UNITS)
    registry = text_registry.Registry(text_registry.registry_folder())
    spent = rate_bounds.with_current_bounds(
        spending.read_odometer_history(folder, registry)
    ).spent()
    screening = file_sources.Screening("this", accounted["gamma"], accounted["delta2"])
    holds = tuple(spent.holds(unit).items())
    run = file_sources.NoisedSource(
        "this", unit, accounted["neighbouring_relation"], (event,), screening, holds
    )
    fold = source_fold.combine_sources(
        [run, file_sources.ScreenedSource("public steps", screening)]
    )
    promise = composed_promise.compose_promise(
        fold, spent, delta=accounted["delta"], accountant=accounted["accountant"]
    )
    epsilon, delta = promise.random_secret_bound()
    return {
        "runs": spent.protected_run_count,
        "unprotected": spent.unprotected_run_count,
        "epsilon": composed_promise.round_bound_up(promise.missed_bound()[0]),
        "gamma": promise.gamma,
        "delta2": promise.delta2,
        "confidentiality_epsilon": composed_promise.round_bound_up(epsilon),
        "confidentiality_delta": delta,
        "by_copies": _guesses_by_copies(
            counts, promise.events, promise.groups, promise.gamma, promise.delta2
        ),
    }


def _account_lines(accounted: dict) -> list[str]:
    """The lines to print: the numbers, the guarantee they give, and what a person can weigh."""
    from confide.reports.model_card import SAME_PEOPLE_PHRASE
    from crtlib.accounting.guarantees import BoundedRate, Guarantee

    numbers = {k: v for k, v in accounted.items() if k not in ("by_copies", "together")}
    # Rounded up: less noise, or rarer sampling, than is printed would have another epsilon.
    bounds = ("epsilon", "delta", "confidentiality_epsilon", "confidentiality_delta", "gamma",
              "noise_multiplier", "sampling_probability")  # fmt: skip
    shown_numbers = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in numbers.items()}
    shown_numbers |= {k: at_most(numbers[k], 6) for k in bounds}
    lines = [f"{name:>24}  {value}" for name, value in shown_numbers.items()]
    guarantee = Guarantee(
        accounted["confidentiality_epsilon"],
        delta=accounted["confidentiality_delta"],
        unit=f"one secret in one {accounted['unit']}",
        neighbouring_relation=accounted["neighbouring_relation"],
        accountant=accounted["accountant"],
        kind="Bayesian confidentiality",
        gamma=BoundedRate(accounted["gamma"]),
        delta2=BoundedRate(accounted["delta2"]),
        public="the number of private points",
    )
    lines += [f"\n{guarantee}", *_copies_lines(accounted["by_copies"])]
    if "together" not in accounted:
        return lines
    together = accounted["together"]
    unprotected = ""
    if together["unprotected"]:
        unprotected = f", and {together['unprotected']} without protection"
    plural = "" if together["runs"] == 1 else "s"
    return [
        *lines,
        f"\ntogether with {together['runs']} earlier run{plural} {SAME_PEOPLE_PHRASE}"
        f"{unprotected}:",
        f"  epsilon {together['epsilon']} of a {accounted['unit']} in clear at delta "
        f"{accounted['delta']:g}",
        f"  epsilon {together['confidentiality_epsilon']} of a secret at random at delta "
        f"{at_most(together['confidentiality_delta'])} (trace rate {at_most(together['gamma'])}, "
        f"public {at_most(together['delta2'])}, as of another screening)",
        *_copies_lines(together["by_copies"]),
    ]


def _copies_lines(rows: list[dict[str, float]]) -> list[str]:
    return [
        f"{row['copies']} in clear: at most {at_most(row['right_guesses'], 3)} right "
        "guesses of 100; if passed over as often as others: "
        f"{at_most(row['right_guesses_after_redaction'], 3)}"
        for row in rows
    ]


def _guesses_by_copies(
    counts: list[int],
    events: tuple[SampledGaussian, ...],
    group: GroupSizes,
    gamma: float,
    delta2: float,
) -> list[dict[str, float]]:
    """Right guesses per 100 about a person with this many points, or a value that occurs this
    often: several messages may become copies of each other once they are masked
    (``ComposedPromise.right_guesses``)."""
    from crtlib.accounting import guess_bounds

    def right(copies: int, **rates: float) -> float:
        gained = guess_bounds.guess_advantage(  # whether it was blacked out
            events, copies=copies, neighbouring_relation="replace", group=group, **rates
        )
        return 100 * guess_bounds.right_guess_rate(gained)

    return [
        {
            "copies": k,
            "right_guesses": right(k, trace_rate=1.0),
            "right_guesses_after_redaction": right(
                k, trace_rate=gamma if k == 1 else 1.0, public_rate=delta2
            ),
        }
        for k in counts
    ]
