"""``crtlib run``: the whole path of a project, each step once.

>>> words("screen", {"policy": "cautious", "keep_ids": True, "force": False}, [])
['screen', '--policy', 'cautious', '--keep-ids']
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import tomllib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Annotated, Any

from crtlib import cli, files, outputs
from crtlib.checks import check_choice
from crtlib.options import Answer, opt
from crtlib.recipe import choose

STEPS = ("ingest", "label", "tagger", "screen", "train", "report", "certify")
STAMPS = Path(".crtlib-run.json")
DONE, UP_TO_DATE, WAITS = "done", "up to date", "people must label"


def run(
    folder: Annotated[Path, opt("A folder of crtlib new.", "place", argument="DIR")],
    until: Annotated[str | None, opt("The last step to run.")] = None,
    dry_run: Annotated[bool, opt("Print the commands only.", "place")] = False,
) -> Answer:
    """Run the steps of a project that are not up to date; stops where people must label.

    Ends with 4 where a step's answer is no, as of a certificate that does not meet its limits.

    Example: crtlib run helpdesk --until screen
    """
    settings = read(folder)
    steps = list(settings)
    if until:
        check_choice("until", until, steps)
        steps = steps[: steps.index(until) + 1]
    states: dict[str, str] = {}
    facts: dict[str, Any] = {"steps": states, "ok": True}

    def lines() -> Iterator[str]:
        with contextlib.chdir(folder):
            for step in steps:
                if dry_run:
                    states[step] = "crtlib " + " ".join(_words(step, settings))
                    yield states[step]
                    continue
                states[step] = yield from _step(step, settings, facts)
                if states[step] == WAITS:
                    return

    return Answer(facts, lines())


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The settings of each step, in order; ``ValueError`` for one that its command lacks."""
    file = folder / "crtlib.toml"
    if not file.is_file():
        raise ValueError(f"{file}: no such file; 'crtlib new {folder}' writes one")
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: is no TOML ({error})") from None
    for step in settings:
        if step not in STEPS:
            raise ValueError(f"crtlib.toml: [{step}] must be one of {', '.join(STEPS)}")
        _check(step, settings)
    return {step: settings[step] for step in STEPS if step in settings}


def _program() -> cli.Program:
    return cli.Program("crtlib", "crtlib.commands", STEPS, version="", about="")


def _check(step: str, settings: dict[str, dict[str, Any]]) -> None:
    """Refuse what the step's command would refuse, before the first step."""
    where = f"crtlib.toml, [{step}]"
    if talk := {"json", "quiet"} & settings[step].keys():
        raise ValueError(f"{where} {min(talk)}: is an option of 'crtlib run'")
    try:
        _program().parsed(_words(step, settings))
    except Exception as error:
        if (refused := cli.failure(error)) is None:
            raise
        raise ValueError(f"{where}: {refused}") from None


def words(command: str, settings: dict[str, Any], places: list[str]) -> list[str]:
    """The words of a command line."""
    line = [*command.split(), *places]
    for key, value in settings.items():
        option = "--" + key.replace("_", "-")
        each = value if isinstance(value, list) else [value]
        for one in each:
            line += [option] if one is True else [] if one is False else [option, str(one)]
    return line


def _words(step: str, settings: dict[str, dict[str, Any]]) -> list[str]:
    """The command line of a step: what it reads is what the steps before it wrote."""
    table = dict(settings[step])
    labels = ["--labels", "labels"] if "label" in settings else []
    text = "screened" if "screen" in settings else "corpus"
    if step == "ingest":
        return words("ingest", table, [*table.pop("source", []), "--out", "corpus", "--force"])
    if step == "label":
        return words("label sample", table, ["corpus", "--out", "labels"])
    if step in ("tagger", "screen"):
        out = {"tagger": "tagger", "screen": "screened"}[step]
        return words(step, table, ["corpus", *labels, "--out", out, "--force"])
    if step == "train":
        (recipe, *_), _ = choose(table)
        if "screen" in settings or "labels" not in recipe.model_fields:
            labels = []  # they have judged already, or there is no policy to judge
        place = "corpus" if "plan" in table else text
        return words(step, table, [place, *labels, "--out", "model"])
    if step == "report":
        return words(step, table, ["model", "--corpus", text, "--out", "report", "--force"])
    return words(step, table, ["model", "--out", "certificate.html", "--force"])


def _step(
    step: str, settings: dict[str, dict[str, Any]], facts: dict[str, Any]
) -> Generator[str, None, str]:
    """Run a step; returns what became of it. ``facts`` keep whether its answer is no."""
    line = _words(step, settings)
    if step == "label":
        return (yield from _label(line))
    if step in ("ingest", "tagger", "screen", "certify"):  # what is up to date they know, or what
        # is true of a run changes with what follows it
        facts["ok"] &= yield from _call(line)
        return DONE
    stamps = json.loads(STAMPS.read_text(encoding="utf-8")) if STAMPS.is_file() else {}
    stamp = _stamp(line)
    if stamps.get(step) == stamp:
        yield f"{step}: up to date"
        return UP_TO_DATE
    facts["ok"] &= yield from _call(line)
    files.write_text(STAMPS, json.dumps(stamps | {step: stamp}) + "\n", mode=0o600)
    return DONE


def _stamp(line: list[str]) -> str:
    """A hash of a command line and of the files, folders and policies that it names."""
    from crtlib.screening import policies

    digest = hashlib.sha256("\0".join(line).encode())
    for option, value in itertools.pairwise(line):
        if option in ("--policy", "--conservative"):
            digest.update(policies.digest(value).encode())
        elif option != "--out" and Path(value).exists():
            digest.update(outputs.content(value).encode())
    return digest.hexdigest()


def _label(line: list[str]) -> Generator[str, None, str]:
    """Draw turns unless that was done; bring in what people exported."""
    from crtlib.text import labels

    if outputs.marker("labels") is None:
        yield from _call(line)
    about = labels.facts("labels")
    labels.same_corpus("corpus", about)
    if "first" in about:
        yield "labels: up to date"
        return UP_TO_DATE
    exported = sorted(Path().glob("labels-*.json"))
    if not exported:
        turns = about["judge"] + about["teach"]
        yield f"labels: {turns:,} turns wait in labels/page.html; then 'crtlib run' again"
        return WAITS
    yield from _call(["label", "import", "corpus", str(exported[-1]), "--labels", "labels"])
    return DONE


def _call(line: list[str]) -> Generator[str, None, bool]:
    """Run a command; returns whether its answer is not no."""
    yield "crtlib " + " ".join(line)
    try:
        answer = _program().parsed(line)()
        yield from answer.lines
    except ValueError as error:
        if "say --" not in str(error):
            raise
        raise ValueError(f"{error}; in crtlib.toml it is a key of [{line[0]}]") from None
    return bool(answer.facts.get("ok", True))
