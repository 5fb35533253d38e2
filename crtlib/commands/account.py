"""``crtlib account``: noise for a target epsilon, what redaction makes of it, what was spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from crtlib.intervals import at_most
from crtlib.options import Answer, opt

if TYPE_CHECKING:
    from crtlib.accounting.ledger import Group, SampledGaussian

SPENT = "What was spent"


def account(
    delta: Annotated[float | None, opt("Delta of one point, in (0, 1).")] = None,
    batch_size: Annotated[float | None, opt("Expected size of a batch.")] = None,
    points: Annotated[int | None, opt("Private data points.")] = None,
    epochs: Annotated[float | None, opt("Epochs, as expected passes over the points.")] = None,
    epsilon: Annotated[float | None, opt("Target epsilon of DP-SGD.")] = None,
    noise_multiplier: Annotated[float | None, opt("Instead of --epsilon.")] = None,
    gamma: Annotated[float, opt("Trace rate of the redaction policy.")] = 1.0,
    delta2: Annotated[float, opt("Public rate; it is added to delta.")] = 0.0,
    copies: Annotated[
        str, opt("Rows for a person with so many points, or a value said so often.")
    ] = "1,5,20",
    accountant: Annotated[str, opt("Accountant: pld, rdp, prv or autodp.")] = "pld",
    neighbouring: Annotated[
        str, opt("Relation: replace, or add_or_remove (as in the paper).")
    ] = "replace",
    unit: Annotated[str, opt("What one data point is, for the record.")] = "point",
    before: Annotated[
        Path | None,
        opt("Odometer of earlier runs: what they and this one spend together.", group=SPENT),
    ] = None,
    odometer: Annotated[
        Path | None, opt("Instead: what the runs in this odometer have spent.", group=SPENT)
    ] = None,
    strike: Annotated[
        str | None, opt("Hash of an entry of a model that nobody ever saw.", group=SPENT)
    ] = None,
    because: Annotated[str, opt("Why, for --strike.", group=SPENT)] = "",
    forget: Annotated[
        bool, opt("Forget whose text that odometer's was; its runs stay.", group=SPENT)
    ] = False,
) -> Answer:
    """Noise for a target epsilon (or back), and the confidentiality that redaction makes of it.

    With --before, which needs --unit turn, dialogue or user: what a certificate of this run will
    say, as it adds what was spent on the same text (gamma and delta2 as of another screening).
    With --odometer: the private runs on one text, and what they have spent together. Both count
    earlier runs on text of the same people that the registry of this user knows.

    Example: crtlib account --delta 1e-5 --batch-size 512 --points 46080 --epochs 4 --epsilon 3
    """
    from crtlib.accounting import guarantees
    from crtlib.accounting.ledger import SampledGaussian
    from crtlib.checks import whole_numbers

    if odometer is not None:
        return _odometer(odometer, strike, because, 1e-6 if delta is None else delta, forget)
    if forget:
        raise ValueError("forget: needs --odometer")
    if delta is None or batch_size is None or points is None or epochs is None:
        raise ValueError("account: needs --delta, --batch-size, --points and --epochs")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("epsilon, noise-multiplier: give exactly one of the two")
    told: dict[str, Any] = guarantees.account(
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
    run = SampledGaussian(told["sampling_probability"], told["noise_multiplier"], told["steps"])
    counts = whole_numbers("copies", copies)
    told["by_copies"] = _by_copies(counts, (run,), 1, told["gamma"], told["delta2"])
    if before is not None:
        told["together"] = _together(told, run, before, counts)
    lines = _account_lines(told)
    if told["accountant"] != accountant:
        other = told["accountant"]
        note = f"{accountant} has no answer here, or a larger one: the bound is that of {other}"
        lines.append(note)
    return Answer(told, lines)


def _odometer(folder: Path, strike: str | None, because: str, delta: float, forget: bool) -> Answer:
    from crtlib.accounting import odometer
    from crtlib.release import certify

    registry = odometer.Registry(odometer.home())
    if strike is not None:
        odometer.strike(folder, strike, because=because, registry=registry)
    entries = odometer.read(folder)
    if forget and entries:
        registry.forget(entries[0].corpus)
    bill = odometer.bill(certify.family(odometer.history(folder, registry)), delta=delta)
    bill["forgotten"] = registry.forgotten(entries[0].corpus) if entries else 0
    lines = []
    for run in bill["runs"]:
        spent = "unprotected" if run["epsilon"] is None else f"epsilon {run['epsilon']}"
        note = f"  ({run['because']})" if run["because"] else ""
        lines.append(
            f"{run['entry'][:12]}  {run['time']}  {run['state']:<8}  {run['method']:<10} "
            f"{run['unit']:<8} {spent}{note}"
        )
    total, unit = bill["together"], bill["unit"]
    lines += [
        f"together  epsilon {total['epsilon']} at delta {delta:g} of one {unit} in clear",
        f"          trace rate at most {at_most(total['gamma'])}, public at most "
        f"{at_most(total['delta2'])}",
    ]
    if bill["forgotten"] and not forget:
        lines.append(
            f"not added: runs of {bill['forgotten']} texts that were forgotten, of which nobody "
            "knows whether they were of the same people"
        )
    if forget:
        lines.append(
            "forgotten: a certificate of a later run on another text of the same people does not "
            "add these runs, and says that nobody of that text is assumed to be in this one"
        )
    return Answer(bill, lines)


def _together(
    told: dict, event: SampledGaussian, folder: Path, counts: list[int]
) -> dict[str, Any]:
    """What a certificate of this run adds: all that was spent on the text, for one of its unit."""
    from crtlib.accounting import odometer
    from crtlib.checks import check_choice
    from crtlib.release import certify, gate

    unit = told["unit"]
    check_choice("unit", unit, odometer.UNITS)
    registry = odometer.Registry(odometer.home())
    spent = certify.family(odometer.history(folder, registry)).spent()
    screening = gate.Screening("this", told["gamma"], told["delta2"])
    holds = tuple(spent.holds(unit).items())
    run = gate.Noised("this", unit, told["neighbouring_relation"], (event,), screening, holds)
    fold = gate.fold([run, gate.Screened("public steps", screening)])
    own = certify.promise(fold, spent, delta=told["delta"], accountant=told["accountant"])
    epsilon, delta = own.secret()
    return {
        "runs": spent.runs,
        "unprotected": spent.unprotected,
        "epsilon": certify.up(own.missed()[0]),
        "gamma": own.gamma,
        "delta2": own.delta2,
        "confidentiality_epsilon": certify.up(epsilon),
        "confidentiality_delta": delta,
        "by_copies": _by_copies(counts, own.events, own.groups, own.gamma, own.delta2),
    }


def _account_lines(told: dict) -> list[str]:
    """The numbers, the guarantee that they make, and what a person can weigh."""
    from crtlib.accounting.guarantees import Guarantee, MissRate

    numbers = {k: v for k, v in told.items() if k not in ("by_copies", "together")}
    bounds = ("epsilon", "delta", "confidentiality_epsilon", "confidentiality_delta", "gamma")
    plain = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in numbers.items()}
    plain |= {k: at_most(numbers[k], 6) for k in bounds}
    lines = [f"{name:>24}  {value}" for name, value in plain.items()]
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
    lines += [f"\n{guarantee}", *_copies_lines(told["by_copies"])]
    if "together" not in told:
        return lines
    both = told["together"]
    bare = f", and {both['unprotected']} without protection" if both["unprotected"] else ""
    plural = "" if both["runs"] == 1 else "s"
    return [
        *lines,
        f"\ntogether with {both['runs']} earlier run{plural} on this text{bare}:",
        f"  epsilon {both['epsilon']} of a {told['unit']} in clear at delta {told['delta']:g}",
        f"  epsilon {both['confidentiality_epsilon']} of a secret at random at delta "
        f"{at_most(both['confidentiality_delta'])} (trace rate {at_most(both['gamma'])}, public "
        f"{at_most(both['delta2'])}, as of another screening)",
        *_copies_lines(both["by_copies"]),
    ]


def _copies_lines(rows: list[dict[str, float]]) -> list[str]:
    return [
        f"{row['copies']} in clear: at most {at_most(row['right_guesses'], 3)} right "
        "guesses of 100; if passed over as often as others: "
        f"{at_most(row['right_guesses_after_redaction'], 3)}"
        for row in rows
    ]


def _by_copies(
    counts: list[int],
    events: tuple[SampledGaussian, ...],
    group: Group,
    gamma: float,
    delta2: float,
) -> list[dict[str, float]]:
    """Right guesses of 100 about a person with so many points, or a value said so often."""
    from crtlib.accounting import guarantees

    def right(copies: int, **rates: float) -> float:
        gained = guarantees.advantage(  # it is blacked out, or not
            events, copies=copies, neighbouring_relation="replace", group=group, **rates
        )
        return 100 * guarantees.right_guess(gained)

    return [
        {
            "copies": k,
            "right_guesses": right(k, trace_rate=1.0),
            "right_guesses_after_redaction": right(k, trace_rate=gamma, public_rate=delta2),
        }
        for k in counts
    ]
