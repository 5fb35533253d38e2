"""``crtlib label``: draw turns to be read by people; bring in what they marked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def sample(
    corpus: Annotated[Path, opt("Corpus folder or JSONL.", "place", argument="CORPUS")],
    out: Annotated[Path, opt("Folder of the labels.", "place")],
    secrets: Annotated[int, opt("Users with a secret that are wanted in the judging part.")] = 400,
    turns: Annotated[int | None, opt("Turns to read instead.")] = None,
    rate: Annotated[float | None, opt("Guess of the share of turns with a secret.")] = None,
    teach: Annotated[int, opt("Further turns, to teach a tagger.")] = 0,
    by: Annotated[str, opt("What is drawn: user or dialogue; one turn each.")] = "user",
    policy: Annotated[
        str | None,
        opt("Prefills the teaching part, half of which is where tagger:FOLDER doubts most."),
    ] = None,
    seal: Annotated[
        str | None,
        opt("Policies of your own that these labels shall judge, as they are now: list:FILE, ..."),
    ] = None,
    kinds: Annotated[
        str, opt("Kinds of secret, with commas between.")
    ] = "name,address,phone,id,other",
    context: Annotated[int, opt("Turns shown before and after.")] = 2,
    forms: Annotated[
        list[str] | None,
        opt(
            "Form: page, jsonl or labelstudio; repeatable. [page]",
            flag="--for",
        ),
    ] = None,
    seed: Annotated[int | None, opt("Seed. [from the operating system]")] = None,
    force: Annotated[bool, opt("Replace labels that exist.", "place")] = False,
) -> Answer:
    """Draw turns to be read, and say how many labels certify which bound.

    Example: crtlib label sample corpus --secrets 400 --teach 600 --out labels
    """
    from crtlib.screening.policies import digest, policy_by_name
    from crtlib.text import labels as library

    if seal:
        policy_by_name(seal)  # refuses what is none

    flags = policy_by_name(policy) if policy else None
    doubt = library.unlike(flags, policy_by_name("cautious")) if flags else None
    for part in (policy or "").split("+"):
        if part.startswith("tagger:"):
            from crtlib.screening.tagger import load

            doubt = load(part.removeprefix("tagger:")).doubt
    summary = library.sample(
        corpus,
        out,
        secrets=secrets,
        turns=turns,
        rate=rate,
        teach=teach,
        by=by,
        policy=flags,
        doubt=doubt,
        sealed=[digest(part) for part in seal.split("+")] if seal else [],
        kinds=[kind.strip() for kind in kinds.split(",")],
        context=context,
        forms=forms or ["page"],
        seed=seed,
        force=force,
    )
    return Answer(summary, [library.table(summary)])


def take(
    corpus: Annotated[
        Path, opt("The corpus that the turns were drawn from.", "place", argument="CORPUS")
    ],
    file: Annotated[Path, opt("What the page or the tool exported.", "place", argument="FILE")],
    labels: Annotated[Path, opt("Folder of crtlib label sample.", "place")],
    annotator: Annotated[str | None, opt("Who read them: a short name. [a; b; c]")] = None,
    role: Annotated[
        str, opt("Reader: first, second or decides; see crtlib label adjudicate.")
    ] = "first",
    partial: Annotated[bool, opt("Accept unread turns; labels then count as given.")] = False,
) -> Answer:
    """Bring in labels, checked against the text they were made for.

    Example: crtlib label import corpus labels-ann-20260301.json --labels labels
    """
    from crtlib.text import labels as library

    summary = library.take(
        corpus,
        file,
        labels,
        annotator=annotator,
        role=role,
        partial=partial,
    )
    return Answer(summary, [library.imported_table(summary)])


def adjudicate(
    corpus: Annotated[
        Path, opt("The corpus that the turns were drawn from.", "place", argument="CORPUS")
    ],
    labels: Annotated[Path, opt("Folder of crtlib label sample.", "place")],
    out: Annotated[Path, opt("Folder of what is to be read.", "place")],
    share: Annotated[
        float, opt("Share of all turns that the second reads whatever is marked.")
    ] = 0.2,
    forms: Annotated[
        list[str] | None, opt("Form: page, jsonl or labelstudio; repeatable. [page]", flag="--for")
    ] = None,
    force: Annotated[bool, opt("Replace a folder that exists.", "place")] = False,
) -> Answer:
    """Write what is read again, so that no reader alone decides what is a secret.

    First for a second reader: all turns with a mark and a random share of all, the marks not shown;
    bring them in with --role second. A mark of one reader alone then counts where a policy fails on
    it, and nowhere else, and what the first overlooked enters the bounds. Then, for --role decides,
    the turns on which the two differ, with all marks.

    Example: crtlib label adjudicate corpus --labels labels --out again
    """
    from crtlib.text import labels as library

    summary = library.adjudicate(
        corpus, labels, out, share=share, forms=forms or ["page"], force=force
    )
    line = f"to read   {summary['turns']:,} turns; bring them in with --role {summary['role']}"
    return Answer(summary, [line, *(f"{out}/{name}" for name in summary["files"])])


label = {"sample": sample, "import": take, "adjudicate": adjudicate}
