"""Make the leakage report of a model on a text: what of the text the model completes by itself.

Several redacted reports on one model and one text reveal more than one does, so the registry counts
them, and each report is entered in the ledger of attacks beside the odometer of the text.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from confide import attack_ledger, odometer, text_registry
from confide.reports import leakage_page, leakage_scoring
from confide.reports.bands import LEAST_REPORTED_COUNT, count_band
from confide.reports.leakage_tables import ReportCover, TokenDecoder
from crtlib import files, outputs
from crtlib.arguments import argument, argument_error
from crtlib.attacks import leakage
from crtlib.checks import MachineError
from crtlib.files import StrPath
from crtlib.models.model_folder import load_model
from crtlib.models.tensor_files import hash_tensors
from crtlib.text import corpora
from crtlib.text.shards import resume_shards

NO_RUN_NOTE = "no run of this model is known here, so nobody checked that it has read this text"
OTHER_TEXT_NOTE = "this model was trained on another text: it can leak only what both texts contain"


def make_leakage_report(
    model: StrPath,
    corpus: StrPath,
    out: StrPath,
    *,
    top_k: int = 3,
    public: StrPath | None = None,
    unit: str | None = None,
    reveal: bool = False,
    lengths_only: bool = False,
    min_length: int = 1,
    threshold: float | None = None,
    verbatim: bool = False,
    template: str | None = None,
    prefix_scan: bool = False,
    device: str = "cpu",
    force: bool = False,
    executor: Executor | None = None,
) -> tuple[Path, dict]:
    """Make a leakage report from the folder of a model and a corpus, and write it.

    The corpus is read in lots. Memory holds one lot, the runs, and for everything else the ids of
    dialogues, the labels and some bytes per text; if the ``unit`` is a user, also the text. Scores
    are kept beside the report until everything is done (:mod:`crtlib.text.shards`). A report with
    the same input and options is not made again.

    Args:
        model: The folder of a model and its tokenizer.
        corpus: The text that the model may have read.
        out: The folder of the report.
        top_k: How many tokens an attacker tries at each place; 1 is the tab attack.
        public: A model that has not read the text, which shows what is common anyway.
        unit: What one document is; None: what the model was trained on, if its folder records that
            (``experiment.json``), else a turn.
        reveal: Write the text in clear.
        lengths_only: Write only lengths and counts, no users and no labels.
        min_length: The number of tokens in the shortest run that is listed.
        threshold: The ratio t of metric 2.
        verbatim: Leave out runs at the end of a text, as Algorithm 1 does as printed.
        template: How turns became text (:mod:`crtlib.text.templates`); None: what the folder
            records, else the tokenizer's chat template, else the one with which the model predicts
            the text best. The summary has ``warning`` if another one fits better.
        prefix_scan: Read each text after every candidate beginning.
        device: Where the model runs.
        force: Replace the contents of ``out``, and permit a second report.
        executor: Scores several batches of a lot at a time.

    Returns:
        The page and the summary, which has ``warning`` if the model was trained in known runs but
        none of them read this text.

    Raises:
        ValueError: For bad input, before anything is scored or written.
        MachineError: If the corpus has changed in the meantime.

    Guarantee:
        Several redacted reports on one model and one text reveal more than one does, so a second is
        written only with ``force``, and states its number
        (:meth:`confide.text_registry.Registry.count_other_reports`). Test:
        ``tests/reports/test_leakage.py::test_a_second_report_of_a_model_is_forced_and_says_so``.
    """
    _refuse_both(reveal=reveal, lengths_only=lengths_only)
    _refuse_both(prefix_scan=prefix_scan, public=public is not None)
    cover = ReportCover(
        model=_folder_name(model),
        corpus=Path(corpus).name,
        unit=unit or (leakage_scoring.read_recorded_study(Path(model)) or {}).get("unit") or "turn",
        public=None if public is None else _folder_name(public),
        threshold=threshold,
        lengths_only=lengths_only,
    )
    own_template = template if template and Path(template).is_file() else None
    run_options: dict[str, Any] = {"k": top_k, "min_length": min_length, "flush": not verbatim}
    page_options = {
        "reveal": reveal,
        # the name of the file, as no path on this machine leaves it
        "template": Path(own_template).name if own_template else template,
        "prefix_scan": prefix_scan,
        **asdict(cover),
    }
    named_paths = {"model": model, "public": public, "template": own_template}
    given_paths = {name: path for name, path in named_paths.items() if path is not None}
    dialogues = leakage_scoring.read_corpus(corpus)
    network, tokenizer = load_model(model)

    key_file = outputs.key_path_beside(Path(out))
    if key_file.is_file():
        files.check_private_key(key_file)
    out, key = Path(out), outputs.load_or_make_key(key_file)
    corpus_hash = corpora.hash_corpus(corpus)
    inputs = {
        **given_paths,
        "corpus": outputs.with_keyed_hashes(outputs.hash_tree(corpus), key),
        # whatever its format, for certify
        "text": outputs.with_keyed_hashes(corpora.hash_text_as_read(corpus), key),
    }
    recipe: dict = {"command": "report", "options": run_options | page_options, "inputs": inputs}
    if outputs.is_up_to_date(out, **recipe):
        return _read_report(out)
    outputs.check_output_folder(out, inputs=[corpus, *given_paths.values()], force=force)

    history = _look_up_history(model, corpus, corpus_hash, recipe["options"])
    if not (reveal or force):
        history.refuse_second_report(model)
    attack_ledger.refuse_damaged_ledgers(history.ledgers)

    public_network, public_tokenizer = (None, None) if public is None else load_model(public)
    leakage.check_leakage_models(network, tokenizer, k=top_k)
    with (
        _key_beside(key_file, key) as write_key,
        outputs.staged_folder(
            out,
            **recipe,
            public=() if reveal else leakage_page.REPORT_FILES,
            force=force,
            seal=write_key,
        ) as temporary_folder,
        resume_shards(out, {"model": outputs.hash_tree(model)}) as score_shards,
    ):
        used_template, facts = leakage_scoring.choose_report_template(
            template, Path(model), dialogues, network, tokenizer, cover.unit, device
        )
        leakage_scoring.refuse_unreadable_texts(
            dialogues, cover, used_template, tokenizer, public_tokenizer
        )
        leakage.check_leakage_models(network, tokenizer, k=top_k, public=public_network)
        make_scorer = partial(
            leakage_scoring.make_folder_scorer,
            executor=executor,
            shards=score_shards,
            device=device,
        )
        public_scorer = None
        if public is not None and public_network is not None:
            public_scorer = make_scorer(public, public_network)
        reader = leakage_scoring.LotReader(
            tokenizer=tokenizer,
            unit=cover.unit,
            used=used_template,
            k=top_k,
            scorer=make_scorer(model, network),
            public=public_scorer,
            prefixes=Counter() if prefix_scan else None,
        )
        report = leakage.measure_leakage_of_chunks(
            network, tokenizer, reader.lots(dialogues), **run_options, into=leakage.DocumentStore()
        )
        if reader.prefixes is not None:
            facts["prefixes"] = _prefixes_to_show(reader.prefixes, reveal=reveal)
        if warnings := [*history.warnings(), *([facts["warning"]] if "warning" in facts else [])]:
            facts["warning"] = "; ".join(warnings)

        other_reports = 0 if reveal else history.enter_report()
        history.enter_attack(runs_found=len(report.runs))
        leakage_page.write_report_files(
            report,
            temporary_folder,
            replace(cover, note=history.note, report=other_reports + 1),
            decode=cast(TokenDecoder, tokenizer.decode) if reveal else None,
            facts=facts,
        )
        if outputs.with_keyed_hashes(outputs.hash_tree(corpus), key) != inputs["corpus"]:
            raise MachineError(f"{corpus}: changed while it was read; make the report again")
    return _read_report(out)


@dataclass(frozen=True)
class ReportHistory:
    """What is known of a model and a text before a report on them is made.

    Attributes:
        registry: This user's registry, which counts reports.
        ledgers: The ledgers in which the attack is entered.
        corpus_hash, weights_hash, report_hash: The hashes of the text, of the numbers in the model,
            and of the report's options and text.
        report_name: The report's name in the ledgers.
        texts_read: The hashes of the texts that the model has read in runs that are known here.
    """

    registry: text_registry.Registry = field(repr=False)
    ledgers: list[Path] = field(repr=False)
    corpus_hash: str = field(repr=False)
    weights_hash: str = field(repr=False)
    report_hash: str = field(repr=False)
    report_name: str = field(repr=False)
    texts_read: frozenset[str] = field(repr=False)

    @property
    def note(self) -> str:
        """What the page says of whether the model has read this text; empty if it has."""
        if self.corpus_hash in self.texts_read:
            return ""
        return OTHER_TEXT_NOTE if self.texts_read else NO_RUN_NOTE

    def warnings(self) -> list[str]:
        """The note, where known runs of the model read another text."""
        return [self.note] if self.texts_read and self.note else []

    def refuse_second_report(self, model: StrPath) -> None:
        """Raise ValueError if there is another report on this model and text."""
        if self._count_other_reports():
            raise argument_error(
                "out",
                f"{model} was reported on this text before, with other options; several reports "
                f"reveal more than one does: show one, or {argument('force')} another, which "
                "states that it is one of several",
            )

    def enter_report(self) -> int:
        """Enter the report in the registry, and return how many others there are."""
        return self._count_other_reports(enter=True)

    def enter_attack(self, runs_found: int) -> None:
        """Enter the report in the ledgers of attacks, with a rounded number of what it found."""
        rounded = float(count_band(runs_found)[0])
        attack_ledger.enter_attack(
            self.ledgers, "report", self.weights_hash, self.report_name, rounded
        )

    def _count_other_reports(self, *, enter: bool = False) -> int:
        return self.registry.count_other_reports(
            self.corpus_hash, self.weights_hash, self.report_hash, enter=enter
        )


def _look_up_history(
    model: StrPath, corpus: StrPath, corpus_hash: str, options: Mapping[str, Any]
) -> ReportHistory:
    """Register the text, and find the runs and reports of the model on it."""
    registry = text_registry.Registry(text_registry.registry_folder())
    weights_hash = str(hash_tensors(model))
    text_registry.register_text(corpus)
    odometers = odometer.find_odometers(corpus, corpus_hash)
    entries = itertools.chain(*map(odometer.read_entries, odometers), registry.entries())
    return ReportHistory(
        registry=registry,
        ledgers=attack_ledger.find_ledgers(None, odometers[0] if odometers else None),
        corpus_hash=corpus_hash,
        weights_hash=weights_hash,
        report_hash=hashlib.sha256(json.dumps([options, corpus_hash]).encode()).hexdigest(),
        report_name=attack_ledger.name_report(options, corpus_hash),
        texts_read=frozenset(e.corpus for e in entries if e.tensors == weights_hash),
    )


def _prefixes_to_show(counts: Counter[str], *, reveal: bool) -> dict[str, int]:
    """How often each beginning was the best one: in clear, or rounded and without rare ones."""
    if reveal:
        return dict(counts)
    frequent = {prefix: n for prefix, n in counts.items() if n >= LEAST_REPORTED_COUNT}
    return {prefix: count_band(n)[0] for prefix, n in frequent.items()}


@contextlib.contextmanager
def _key_beside(path: Path, key: bytes) -> Iterator[Callable[[Path], None]]:
    """A function that writes the key of a report; it is called last, just before the report takes
    its place, so no report is without its key. A new key is removed again if the report fails."""
    is_new = False

    def write_key(_: Path) -> None:
        nonlocal is_new
        is_new = not path.exists()
        with files.replace_atomically(path, mode=0o600) as file:
            file.write_bytes(key)

    try:
        yield write_key
    except BaseException:
        if is_new:
            path.unlink(missing_ok=True)
        raise


def _read_report(folder: Path) -> tuple[Path, dict]:
    """The page of an existing report, and its summary."""
    report = json.loads(files.read_text(folder / "report.json"))
    return folder / "report.html", report["summary"]


def _refuse_both(**options: bool) -> None:
    """Refuse options that contradict each other."""
    if all(options.values()):
        raise ValueError(f"{', '.join(options)}: contradict each other; give one of the two")


def _folder_name(folder: StrPath) -> str:
    return os.path.basename(os.path.abspath(folder))
