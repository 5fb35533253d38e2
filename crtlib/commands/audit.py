"""``crtlib audit``: what one training shows at the least, against what was proved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def audit(
    run: Annotated[
        Path,
        opt("Folder of crtlib train --canaries auto, or N --copies 1.", "place", argument="RUN"),
    ],
    corpus: Annotated[Path, opt("The text that it was trained on.", "place")],
    out: Annotated[Path, opt("Folder for audit.json.", "place")],
    reference: Annotated[
        list[Path] | None,
        opt("Folder of a model that has not read the canaries; may be repeated."),
    ] = None,
    claim: Annotated[
        float | None,
        opt("Test this epsilon, of every secret, instead of what is proved.", gt=0),
    ] = None,
    guesses: Annotated[int | None, opt("Canaries to guess on. [five numbers are tried]")] = None,
    confidence: Annotated[float, opt("Confidence of the lower bound, in (0, 1).")] = 0.95,
    seed: Annotated[int | None, opt("Seed of coins. [drawn]")] = None,
    force: Annotated[bool, opt("Replace an earlier audit.", "place")] = False,
) -> Answer:
    """Audit one training with many invented secrets, each planted once.

    Each has a control that was not planted; the attacker names which of the two was read. Ends with
    4 where more is shown than the proof allows. Says how often it would have noticed half of the
    noise at the most, and "says nothing" where that is hardly ever, or where the attacker did no
    better than a coin.

    Example: crtlib audit run --corpus dialogues.jsonl --out audit
    """
    from crtlib.attacks import run_audit
    from crtlib.release import gate

    for folder in (run, *(reference or ())):
        if place := run_audit.place(folder):
            gate.read_signed(place)  # nobody has edited it
    audited = run_audit.audit(
        run, corpus, out, references=reference or (), claim=claim,
        guesses=guesses, confidence=confidence, seed=seed, force=force,
    )  # fmt: skip
    return Answer({"ok": not audited.refuted, **audited.to_json()}, audited.lines())
