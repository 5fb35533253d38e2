"""Write a screened folder and its page: how often the policies miss, and what would be public.

The page holds only counts and no text. But the counts are exact, so one message changes them, and
the page is for those who decide. What ``reveal`` shows is on a page of its own.

>>> import pathlib, tempfile
>>> from crtlib.text import customersim, jsonl
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(customersim.simulate_corpus(30, 0), home / "c.jsonl")
>>> outcome = screen_into_folder(
...     home / "c.jsonl", home / "s", ScreeningOptions("regex:customersim"), reveal=1
... )
>>> print(format_screening(outcome).splitlines()[0])
turns 252 · duplicates 115 · private 252 · public 0 (0.0 %)
>>> sorted(p.name for p in (home / "s").iterdir())
['crtlib.json', 'private', 'public', 'screening.html', 'summary.json']
>>> screen_into_folder(
...     home / "c.jsonl", home / "s", ScreeningOptions("regex:customersim"), reveal=1
... ) is None
True
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from confide.labels.label_tasks import read_label_facts
from confide.reports import html
from confide.screening import corpus_screening
from confide.screening.corpus_screening import ScreeningOptions, ScreeningOutcome, default_policy
from crtlib import outputs
from crtlib.arguments import argument, argument_error
from crtlib.files import StrPath
from crtlib.screening.rate_values import RATE_NAMES
from crtlib.text import screened_folder, shards

PUBLIC_SCREENING_FILES = ("public/*",)
LEAST_SHOWN_COUNT = 5
"""The smallest count that is shown on the page."""


def screen_into_folder(
    corpus: StrPath,
    out: StrPath,
    options: ScreeningOptions | None = None,
    *,
    labels: StrPath | None = None,
    reveal: int = 0,
    force: bool = False,
    executor: Executor | None = None,
    progress: bool = False,
    **names: Any,
) -> ScreeningOutcome | None:
    """Screen a corpus into the folder ``out`` (CRT, Algorithm 1).

    What the policies flag is kept beside ``out`` until everything is done
    (:mod:`crtlib.text.shards`), so a screening that is killed can resume.

    Args:
        corpus: A text that is not screened.
        out: The screened folder.
        options: The options; None: made from ``names``.
        labels: A folder of ``crtlib label``, whose judging part judges the policies.
        reveal: How many examples of each kind to show, in clear, in ``private/examples.html``.
        force: Replace the contents of ``out``.
        executor: Workers that run the policies.
        progress: Show a bar on a terminal.
        names: Fields of the options; without a policy among them the corpus's own is used.

    Returns:
        What was found; only its ``examples`` are text, of which its ``repr`` shows none. None if
        the same screened folder is already there.

    Raises:
        ValueError: For arguments that do not fit; then nothing is written.

    Guarantee:
        ``public/`` may be shown. Everything else is readable by its owner only, since
        ``summary.json`` and the page count exactly what the policies found. No hash there can be
        computed from a text that somebody guesses. Tests: ``tests/screening/test_corpus.py::
        test_a_summary_that_may_be_shown_has_no_plain_hash_of_the_text``,
        ``tests/release/test_certify.py::test_what_may_be_shown_tells_no_hash_of_the_text``.
    """
    if screened_folder.is_screened_folder(corpus):
        raise ValueError(f"{corpus}: is screened already")
    options = options or ScreeningOptions(
        **{"policy": names.get("policy") or default_policy(corpus), **names}
    )
    options.pair()  # an unknown policy is refused before anything is read
    if labels:
        read_label_facts(labels)
    inputs = {"corpus": corpus} | ({"labels": labels} if labels else {})
    recipe: dict[str, Any] = {
        "command": "screen",
        "inputs": inputs,
        "key": screened_folder.KEY_FILE,
        "options": options.recorded() | {"reveal": reveal},
    }
    if outputs.is_up_to_date(out, **recipe):
        if screened_folder.holds_roles(out):
            return None
        if not force:
            raise argument_error(
                "out",
                f"{out} was screened by an earlier version and does not say who spoke; choose "
                f"another folder or {argument('force', True)}",
            )
    flagged = {"corpus": outputs.hash_tree(corpus), **options.recorded()}
    with (
        outputs.staged_folder(
            out, **recipe, public=PUBLIC_SCREENING_FILES, force=force
        ) as temporary_folder,
        shards.resume_shards(out, flagged) as flag_shards,
    ):
        key = outputs.load_or_make_key(temporary_folder / screened_folder.KEY_FILE)
        outcome = corpus_screening.screen_corpus(
            corpus,
            temporary_folder,
            options,
            key=None if options.keep_ids else key,
            judges=labels,
            reveal=reveal,
            executor=executor,
            shards=flag_shards,
            progress=progress,
        )
        shown_outcome = replace(outcome, summary=outputs.with_keyed_hashes(outcome.summary, key))
        for name, summary in (
            ("private/", outcome.summary | outcome.private),
            ("", shown_outcome.summary),
        ):
            text = json.dumps(summary, indent=1) + "\n"
            (temporary_folder / f"{name}summary.json").write_text(text, encoding="utf-8")
        page = render_screening_page(shown_outcome)
        (temporary_folder / "screening.html").write_text(page, encoding="utf-8")
        if reveal:
            page = html.render_template("examples.html.j2", examples=outcome.examples)
            (temporary_folder / "private" / "examples.html").write_text(page, encoding="utf-8")
    return shown_outcome


def render_screening_page(outcome: ScreeningOutcome) -> str:
    """The page of a screened folder."""
    return html.render_template(
        "screening.html.j2", s=outcome.summary, found=outcome.rates, notes=outcome.notes,
        names=RATE_NAMES, least=LEAST_SHOWN_COUNT,
    )  # fmt: skip


def format_screening(outcome: ScreeningOutcome, notes: Sequence[str] = ()) -> str:
    """The text that ``crtlib screen`` prints."""
    summary = outcome.summary
    points = "turns" if summary["unit"] == "turn" else f"{summary['unit']}s"
    left_out_copies = summary["copies_left_out"]
    left_out = f" ({left_out_copies:,} of public {points} left out)" if left_out_copies else ""
    lines = [
        f"{points} {summary['points']:,} · duplicates {summary['duplicates']:,}{left_out} · "
        f"private {summary['private']:,} · public {summary['public']:,} "
        f"({100 * summary['public_share']:.1f} %)",
        outcome.rates.table(),
    ]
    if len(outcome.rates.by_kind) > 1:
        lines += ["by kind (each bound for itself)"]
        lines += [
            f"  {kind:<20} miss {rates['miss'].describe_with_lack_of_labels()} · "
            f"trace {rates['trace'].failures} of {rates['trace'].judged_secrets}"
            for kind, rates in outcome.rates.by_kind.items()
        ]
    all_notes = (*outcome.private["said"], *outcome.notes, *notes)
    return "\n".join([*lines, *(f"note: {note}" for note in all_notes)])
