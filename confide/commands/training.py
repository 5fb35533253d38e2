"""Commands for a training, and for a project, which takes every step of the whole path once.

>>> command_words("screen", {"policy": "cautious", "keep_ids": True, "force": False}, [])
['screen', '--policy', 'cautious', '--keep-ids']
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sys
import tomllib
from collections.abc import Generator, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from confide import recipes
from confide.commands import COMMANDS
from crtlib import cli, files, outputs
from crtlib.checks import check_choice, printable
from crtlib.options import CommandResult, InvalidOption, OptionWouldHelp
from crtlib.text.encodings import describe_recoding
from crtlib.text.package_data import read_package_file

OPTION_CHOOSERS = {"train": recipes.choose_recipe}
"""Commands whose options depend on each other: those of ``train`` depend on its method."""
PROJECT_FILES = ("crtlib.toml", "Makefile", "README.md", "gitignore", "policies/ours.toml")
PROJECT_STEPS = ("ingest", "label", "tagger", "screen", "train", "report", "certify")
ALWAYS_RUN_STEPS = ("ingest", "tagger", "screen", "certify")
"""Steps that are always run: the first three detect themselves whether they are up to date, and
what a certificate says about a run may change with later runs."""
STEP_PROGRAM = cli.Program("crtlib", "confide.commands", COMMANDS, version="", about="")
STAMPS_FILE = Path(".crtlib-run.json")
EARLIER_FOLDER = Path("earlier")
MADE_OF_A_TEXT = (
    "tagger", "screened", "model", "model.work", "report", "certificate*", "labels-*.json",
)  # fmt: skip
"""What the steps of a project make from its text, besides its labels and people's exports."""
ANEW = (
    "use --new-text, which moves what was made from the earlier one into "
    f"{EARLIER_FOLDER}/N, and begins again"
)
STEP_DONE, STEP_UP_TO_DATE, STEP_WAITS = "done", "up to date", "people must label"
NEXT_COMMAND_HINT = "what it may give away, on one sheet: crtlib certify {} --out certificate.html"


def train(recipe: recipes.Recipe) -> CommandResult:
    """Train a model on a corpus by a method, and state what is promised about it.

    Below are the options of one method; --method NAME --help shows those of another. Under torchrun
    --nproc-per-node N -m crtlib train ..., N processes train one model together.

    Example: crtlib train dialogues.jsonl --method crt --out run
    """
    if recipe.out is None:
        raise InvalidOption("out", "is missing")
    from confide.reports import model_card
    from confide.training import study_of_text, train_on_corpus
    from crtlib.models import smollm2
    from crtlib.training import devices, parallel

    with parallel.join_process_group():
        trained = train_on_corpus.train_for_command(
            recipe, card=model_card.render_model_card, progress=True
        )
        if not parallel.process_group().is_leader:
            return CommandResult({})
    lines = [*trained.lines]
    if trained.facts.get("kind"):  # without noise it may repeat what somebody wrote
        from crtlib.models import generation

        with contextlib.suppress(ValueError):  # after a training that diverged
            prompt = "USR: " if trained.facts.get("recurrent") else "Hello"
            (completion,) = generation.generate_text(recipe.out, prompt, max_tokens=40)
            lines.append(f"it writes: {printable(prompt + completion)}")
    chose_model = study_of_text.MODEL_OPTIONS & recipe.model_fields_set
    if trained.facts.get("recurrent") and not chose_model:
        device = devices.device_by_name(recipe.device)
        hours = study_of_text.hours_of_smollm2(trained.facts["corpus"]["points"], device)
        lacking = smollm2.missing_smollm2_packages()
        core_text = " of a core" if device == "cpu" else ""
        lines.append(
            f"SmolLM2 with adapters, which has read before, takes about {hours:g} hours{core_text} "
            f"on this text: --core-hours {hours:g}" + (f" ({lacking})" if lacking else "")
        )
    return CommandResult(trained.facts, [*lines, NEXT_COMMAND_HINT.format(recipe.out)])


def generate(
    model: Path,
    prompt: str,
    max_tokens: int = 200,
    temperature: float = 1.0,
    top_p: float = 1.0,
    n: int = 1,
    seed: int | None = None,
) -> CommandResult:
    """Generate text with a model, until it stops by itself or has written --max-tokens.

    Example: crtlib generate model --prompt "USR: hello" --n 3

    Files:
        MODEL: Folder of crtlib train, or of transformers.
    Options:
        --prompt: Beginning of the text; - reads it from standard input.
        --max-tokens: Most tokens to write.
        --temperature: Temperature; 0 always takes the likeliest token.
        --top-p: Draw from the likeliest tokens that have this share of the probability.
        --n: Number of texts.
        --seed: Seed. [from the operating system]
    """
    from crtlib.models import generation

    texts = generation.generate_text(
        model,
        sys.stdin.read() if prompt == "-" else prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        n=n,
        seed=seed,
    )
    return CommandResult({"texts": texts}, texts)


# --------------------------------------------------------------------------- a project
def new(dir: Path) -> CommandResult:
    """Write a new project: settings, policies, and a Makefile that runs all steps.

    Example: crtlib new helpdesk

    Files:
        DIR: A new or empty folder.
    """
    if dir.exists() and (not dir.is_dir() or any(dir.iterdir())):
        raise ValueError(f"{dir}: is not empty; name a new folder")
    home = resources.files("confide.commands") / "project"
    names = [name.replace("gitignore", ".gitignore") for name in PROJECT_FILES]
    for source, name in zip(PROJECT_FILES, names, strict=True):
        files.write_text(dir / name, read_package_file(source, home))
    line = f"{dir}/crtlib.toml: name your file under [ingest], then 'crtlib run {dir}'"
    return CommandResult({"folder": dir, "files": names}, [line])


def run(
    dir: Path, until: str | None = None, new_text: bool = False, dry_run: bool = False
) -> CommandResult:
    """Run the steps of a project that are not up to date; stop where people must label.

    The exit code is 4 where a step's answer is no, as where a certificate does not meet its limits.
    For the messages of another month give --new-text: earlier labels then teach, and the
    certificate counts the earlier models.

    Example: crtlib run helpdesk --until screen

    Files:
        DIR: A folder of crtlib new.
        --new-text: Move what was made from the earlier messages to DIR/earlier/N, and begin again.
        --dry-run: Only print the commands.
    Options:
        --until: The last step to run.
    """
    settings = read_project_settings(dir)
    steps = list(settings)
    if until:
        check_choice("until", until, steps)
        steps = steps[: steps.index(until) + 1]
    states: dict[str, str] = {}
    facts: dict[str, Any] = {"steps": states, "ok": True}

    def lines() -> Iterator[str]:
        with contextlib.chdir(dir):
            if "certify" in settings and not dry_run and outputs.find_marker("model") is None:
                yield from _describe_later_months(settings)
            for step in steps:
                if dry_run:
                    states[step] = "crtlib " + " ".join(_step_words(step, settings))
                    yield states[step]
                    continue
                states[step] = yield from _run_step(step, settings, facts, new_text)
                if states[step] == STEP_WAITS:
                    return

    return CommandResult(facts, lines())


def read_project_settings(folder: Path) -> dict[str, dict[str, Any]]:
    """The settings of each step, in order; ``ValueError`` for one that its command lacks."""
    file = folder / "crtlib.toml"
    if fault := files.why_not_regular(file):
        raise ValueError(f"{file}: {fault}; 'crtlib new {folder}' writes one")
    try:
        settings = tomllib.loads(files.read_text(file, "utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is not UTF-8; {describe_recoding(file)}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{file}: is not TOML ({error})") from None
    for step in settings:
        if step not in PROJECT_STEPS:
            raise ValueError(f"crtlib.toml: [{step}] must be one of {', '.join(PROJECT_STEPS)}")
        _check_plain_values(step, settings[step])
        _check_step(step, settings)
    return {step: settings[step] for step in PROJECT_STEPS if step in settings}


def _check_plain_values(step: str, table: Any) -> None:
    """Refuse values that no option can have: a step is one table of texts, numbers and lists."""
    if not isinstance(table, dict):
        raise ValueError(f"crtlib.toml: {step}: must be one table, [{step}]")
    for key, value in table.items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int | float) for item in values):
            raise ValueError(f"crtlib.toml, [{step}] {key}: must be a text, a number or a list")
    source = table.get("source", [])
    if step == "ingest" and not (
        isinstance(source, list) and all(isinstance(item, str) for item in source)
    ):
        raise ValueError("crtlib.toml, [ingest] source: must be a list of names of files")


def _check_step(step: str, settings: dict[str, dict[str, Any]]) -> None:
    """Refuse what the step's command would refuse, before the first step."""
    label = f"crtlib.toml, [{step}]"
    if output_options := {"json", "quiet"} & settings[step].keys():
        raise ValueError(f"{label} {min(output_options)}: is an option of 'crtlib run'")
    try:
        STEP_PROGRAM.bind_line(_step_words(step, settings))
    except Exception as error:
        if (refused := cli.describe_failure(error)) is None:
            raise
        key, value = refused.where, ""
        if key.startswith("--"):  # a key of the table is meant, and not an option that was typed
            key, _, value = key[2:].partition(" ")
        place = " ".join(
            part for part in (label, key.replace("-", "_"), value and f"= {value}") if part
        )
        hint = refused.hint.replace("--", "")
        raise ValueError(f"{place}: {refused.what}" + (f"; {hint}" if hint else "")) from None


def command_words(command: str, settings: dict[str, Any], arguments: list[str]) -> list[str]:
    """The words of a command line."""
    line = [*command.split(), *arguments]
    for key, value in settings.items():
        option = "--" + key.replace("_", "-")
        values = value if isinstance(value, list) else [value]
        for item in values:
            line += [option] if item is True else [] if item is False else [option, str(item)]
    return line


def _step_words(step: str, settings: dict[str, dict[str, Any]]) -> list[str]:
    """The command line of a step, which reads what the steps before it wrote."""
    table = dict(settings[step])
    labels = ["--labels", "labels"] if "label" in settings else []
    text = "screened" if "screen" in settings else "corpus"
    if step == "tagger" and EARLIER_FOLDER.is_dir():
        from confide.labels import label_tasks

        earlier_labels = sorted(
            EARLIER_FOLDER.glob("*/labels"), key=lambda path: int(path.parent.name)
        )
        read = [path for path in earlier_labels if "first" in label_tasks.read_label_facts(path)]
        labels += [argument for path in read for argument in ("--labels", str(path))]
    if step == "train":
        (recipe, *_), _ = recipes.choose_recipe(table)
        if "screen" in settings or "labels" not in recipe.model_fields:
            labels = []  # the labels have judged already, or there is no policy
    fixed_arguments = {
        "ingest": [*table.pop("source", []), "--out", "corpus", "--force"],
        "label": ["corpus", "--out", "labels"],
        "tagger": ["corpus", *labels, "--out", "tagger", "--force"],
        "screen": ["corpus", *labels, "--out", "screened", "--force"],
        "train": ["corpus" if "plan" in table else text, *labels, "--out", "model"],
        "report": ["model", "--corpus", text, "--out", "report", "--force"],
        "certify": ["model", "--out", "certificate.html", "--force"],
    }
    return command_words("label sample" if step == "label" else step, table, fixed_arguments[step])


def _describe_later_months(settings: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Warn in a line if the model that is about to be trained learns something without noise. Once
    it is out, no certificate of a text with further messages can hold
    (:data:`confide.release.void_reasons.OTHER_TEXT_REASON`), and then it is too late to learn
    that."""
    from crtlib.screening import policy_names

    step, table = "screen", settings.get("screen")
    if table is not None:
        careful = table.get("conservative", "everything")
    else:
        step, table = "train", settings.get("train", {})
        (recipe, *_), _ = recipes.choose_recipe(dict(table))
        if "conservative" not in recipe.model_fields:
            return
        careful = table.get("conservative") or table.get("policy", "")
    if "everything" not in (kind for kind, _ in policy_names.parse_policy_name(careful)):
        yield (
            "later months: what the policies pass over is learned without noise, so no certificate "
            "of a text with further messages can hold once somebody has this model; if another "
            f'month follows, set conservative = "everything" under [{step}] before it is trained'
        )


def _run_step(
    step: str, settings: dict[str, dict[str, Any]], facts: dict[str, Any], new_text: bool = False
) -> Generator[str, None, str]:
    """Run a step and return the outcome; ``facts`` records whether its answer is no."""
    if step not in ("ingest", "label") and "label" not in settings:
        yield from _put_model_aside(new_text)
    line = _step_words(step, settings)
    if step == "label":
        return (
            yield from _run_label_step(line, certifies="certify" in settings, new_text=new_text)
        )
    if step in ALWAYS_RUN_STEPS:
        facts["ok"] &= yield from _run_command(line)
        return STEP_DONE
    stamps = _read_stamps()
    stamp = _hash_step_inputs(line)
    if stamps.get(step) == stamp:
        yield f"{step}: up to date"
        return STEP_UP_TO_DATE
    begun_key = f"{step} begun"
    finished = outputs.find_marker(line[line.index("--out") + 1]) is not None
    killed_before_its_stamp = step == "train" and finished and stamps.get(begun_key) == stamp
    if not killed_before_its_stamp:
        if not finished:
            _write_stamps(stamps | {begun_key: stamp})
        facts["ok"] &= yield from _run_command(line)
    _write_stamps(stamps | {step: stamp})
    return STEP_DONE


def _read_stamps() -> dict[str, str]:
    """What each step was made from, as the last run wrote it."""
    return dict(json.loads(files.read_text(STAMPS_FILE))) if STAMPS_FILE.is_file() else {}


def _write_stamps(stamps: dict[str, str]) -> None:
    files.write_text(STAMPS_FILE, json.dumps(stamps) + "\n", mode=0o600)


def _hash_step_inputs(line: list[str]) -> str:
    """A hash of a command line and of the files, folders and policies that it names."""
    from crtlib.screening import policy_digests

    digest = hashlib.sha256("\0".join(line).encode())
    for option, value in itertools.pairwise(line):
        if option in ("--policy", "--conservative"):
            digest.update(policy_digests.policy_digest(value).encode())
        elif option != "--out" and Path(value).exists():
            digest.update(outputs.hash_tree(value).encode())
    return digest.hexdigest()


def _run_label_step(
    line: list[str], *, certifies: bool = False, new_text: bool = False
) -> Generator[str, None, str]:
    """Draw turns unless that was done; import what people exported from their page, but no exports
    from another page, such as last month's. Nobody is asked to read for a certificate that would be
    void whatever they find."""
    from confide import text_registry
    from confide.labels import imports, label_tasks
    from confide.release import void_reasons

    text = text_registry.register_text("corpus")
    is_drawn = outputs.find_marker("labels") is not None
    if is_drawn and text != label_tasks.read_label_facts("labels")["corpus"]:
        if not new_text:
            raise ValueError(f"label: corpus is not the text that labels was drawn from; {ANEW}")
        is_drawn = False
    if not is_drawn and certifies and (void := void_reasons.reason_before_training("corpus", text)):
        raise ValueError(
            f"label: a certificate would be void: {void} Without [certify] the steps go on"
        )
    if not is_drawn and outputs.find_marker("labels") is not None:
        yield f"what was made from the earlier text is in {_put_aside('labels')}; its labels teach"
    if not is_drawn:
        yield from _run_command(line)
    label_facts = label_tasks.read_label_facts("labels")
    own_pages = None, label_tasks.name_label_page(label_facts, "first")
    exports = {
        outputs.hash_tree(path): path
        for path in sorted(Path().glob("labels-*.json"))
        if imports.exported_page(path) in own_pages
    }
    if "first" in label_facts:
        _refuse_other_exports(exports)
        yield "labels: up to date"
        return STEP_UP_TO_DATE
    if not exports:
        turns = label_facts["judge"] + label_facts["teach"]
        yield f"labels: {turns:,} turns wait in labels/page.html; then 'crtlib run' again"
        return STEP_WAITS
    if len(exports) > 1:
        names = ", ".join(path.name for path in exports.values())
        raise ValueError(f"label: {names} are exports of one page and differ; keep one of them")
    ((sha256, path),) = exports.items()
    yield from _run_command(["label", "import", "corpus", str(path), "--labels", "labels"])
    _write_stamps(_read_stamps() | {"label": sha256})
    return STEP_DONE


def _refuse_other_exports(exports: Mapping[str, Path]) -> None:
    """Raise ``ValueError`` for an export of the first reader's page, by its hash, that is not the
    one that was imported: nobody would know that the newer marks count nowhere."""
    marker = outputs.find_marker("labels") or {"inputs": {}, "options": {}}
    imported = {_read_stamps().get("label")}
    if marker["options"].get("role") == "first":
        imported.add(marker["inputs"].get("file"))
    if imported == {None}:  # it was imported by hand, and others have read since
        return
    for path in (path for sha256, path in exports.items() if sha256 not in imported):
        raise ValueError(
            f"label: {path.name} is not the export that was imported; 'crtlib label import corpus "
            f"{path.name} --labels labels' takes it instead, or else remove it"
        )


def _put_model_aside(new_text: bool) -> Iterator[str]:
    """In a project without labels, put a model of an earlier text aside, with everything that was
    made from that text, before anything is made from the new one. The model's record shows which
    text it is from. Without a corpus nothing is put aside."""
    from confide import text_registry
    from confide.release.evidence import read_json_object
    from confide.training.training_record import SIGNED_RECORD_FILE, work_folder

    if outputs.find_marker("model") is None or not Path("corpus").exists():
        return
    text = read_json_object(work_folder("model") / SIGNED_RECORD_FILE)["corpus"]["sha256"]
    if text_registry.register_text("corpus") == text:
        return
    if not new_text:
        raise ValueError(f"train: corpus is not the text that model has read; {ANEW}")
    yield f"what was made from the earlier text is in {_put_aside('model')}"


def _put_aside(last: str) -> Path:
    """Move everything that was made from the earlier text into a folder of its own, which is
    returned. ``last``, the file that shows which text that was, is moved last, so that a command
    that is killed goes on here when it is repeated."""
    number = 1
    while (EARLIER_FOLDER / str(number) / last).exists():
        number += 1
    aside = EARLIER_FOLDER / str(number)
    aside.mkdir(parents=True, exist_ok=True)
    made_paths = {path: None for name in MADE_OF_A_TEXT for path in sorted(Path().glob(name))}
    made_paths.pop(Path(last), None)
    for path in [*made_paths, Path(last)]:
        path.rename(aside / path.name)
    return aside


def _run_command(line: list[str]) -> Generator[str, None, bool]:
    """Run a command; return whether its answer is anything but no."""
    yield "crtlib " + " ".join(line)
    try:
        answer = STEP_PROGRAM.bind_line(line)()
        yield from answer.lines
    except OptionWouldHelp as error:
        keys_text = "it is a key" if len(error.names) == 1 else "these are keys"
        keys = " and ".join(error.names)
        raise ValueError(f"{error}; in crtlib.toml {keys_text} of [{line[0]}]: {keys}") from None
    return bool(answer.facts.get("ok", True))
