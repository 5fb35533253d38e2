"""What a test can see of legible code: a class has no namesake, a module has one headline, imports
and constants stand at the top, a guarantee names its test, messages of the library name its
arguments, and what documents name exists."""

import ast
import functools
import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("crtlib", "confide", "book/crtbook", "book/crtcourse")
ROLE = re.compile(r":(?:func|mod|class|data|meth|attr|exc):`~?([\w.]+)`")
TICK = re.compile(r"`((?:crtlib|confide|crtbook|crtcourse)(?:\.\w+)+)(?:\(\))?`")
SOURCE_FILE = re.compile(r"`([\w./-]+\.(?:py|ipynb|yml|toml|md|j2))`")
SOURCE_FOLDER = re.compile(r"`([\w/-]+)`")
FILES = (".py", ".html", ".json", ".toml", ".csv", ".md", ".yml", ".jsonl")
GROUPS = {"crtlib.attacks", "crtlib.corpora", "crtlib.methods", "crtlib.policies"}
"""Entry points for other packages."""
IMPORTS_IN_FUNCTIONS = {
    "crtlib/__main__.py": {"confide.__main__"},  # the command, where the application is installed
    "crtlib/__init__.py": {"crtlib.attacks.exposure", "crtlib.attacks.leakage",
                           "crtlib.models.model_folder",  # need PyTorch
                           "crtlib.studies.crt_study"},
    "crtlib/screening/policy_names.py": {"crtlib.screening"},  # its taggers need PyTorch
    "crtlib/training/noise.py": {"crtlib.training.noise_kernel"},  # needs Triton
    "crtlib/models/pretrained.py": {"crtlib.models.smollm2"},
}  # fmt: skip
"""Of the library: what a function imports of ours, since a package may be missing or is slow."""
LATE_PACKAGES = {
    "transformers": "of the extra train; seconds",
    "huggingface_hub": "comes with transformers",
    "peft": "of the extra train; seconds",
    "ortools": "of the extra secrets",
    "distributed": "of the extra dask",
    "duckdb": "of the extra app",
    "faker": "a fifth of a second, which only who simulates needs",
    "jinja2": "a fifth of a second, which only who writes a page needs",
}
"""Of other packages: what a function of the library imports, and why not at the top."""
COMMANDS = "confide/commands"
"""A function here imports what it runs, most of which needs PyTorch."""
LATE_IN_THE_APPLICATION = {
    "confide/__init__.py", "confide/__main__.py", "confide/hf.py", "confide/recipes.py",
}  # fmt: skip
"""What else of the application imports late: names that need PyTorch or the extra of a Trainer."""
GUARANTEE = re.compile(
    r"^ *Guarantee:\n((?:(?: .*)?\n)*?)(?= *(?:Args|Raises|Returns|>>>)|\Z)", re.MULTILINE
)
TEST = re.compile(r"``(tests/[^`]+)``")
FLAG = re.compile(r"(?<![\w-])--[a-z]")
TYPED_COMMAND = re.compile(r"\b(crtlib [a-z]+|pip install|hf download) ")
"""What stands before the flags of a command that somebody is told to type."""
OF_THE_COMMAND_LINE = {
    "confide/labels/adjudication.py": "the lines that label adjudicate prints",
    "confide/release/certify.py": "words of the command that a page names",
    "confide/release/verify.py": "a command line of its own",
    "confide/release/void_reasons.py": "sentences of certificates, the same whoever issues them",
    "confide/training/advise.py": "words of the commands that it advises",
    "crtlib/cli.py": "the command line",
    "crtlib/screening/bound_levers.py": "an option of label adjudicate, which it names",
}
"""Where the library and the application may write flags: not in what they refuse a script with,
which :func:`crtlib.arguments.argument` writes for either."""


def sources(*tops):
    return [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


@functools.cache
def parse(path):
    return ast.parse(path.read_text("utf-8"))


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[parts[0] == "book" :]).removesuffix(".__init__")


def duplicates(trees):
    """Public classes of one name, by where they are."""
    places = defaultdict(list)
    for place, tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def imports_in_functions(tree):
    """The modules of ours that a function imports."""
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                module = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else ""
                if module and module.split(".")[0] in ("crtlib", "confide"):
                    found.add(module)
    return found


def packages_in_functions(tree):
    """The packages of others that a function imports."""
    nodes = [
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    ]
    named = {name.name for n in nodes if isinstance(n, ast.Import) for name in n.names}
    named |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    return {name.partition(".")[0] for name in named} - {"crtlib", "confide"}


def private_names_of_others(tree):
    """Names with an underscore that another module of ours keeps to itself, and this one takes."""
    ours = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] in ("crtlib", "confide", "crtbook", "crtcourse")
    ]
    taken = {name.name for node in ours for name in node.names}
    modules = {name.asname or name.name for node in ours for name in node.names}
    taken |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
    }
    return {name for name in taken if re.match("_[^_]", name)}


def late_constants(tree):
    """Constants below the first function or class that need nothing which is defined below it."""
    definitions = (ast.FunctionDef, ast.ClassDef)
    first = next((n.lineno for n in tree.body if isinstance(n, definitions)), None)
    later, found = set(), []
    for node in tree.body:
        if first is None or node.lineno < first:
            continue
        if isinstance(node, definitions):
            later.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, used = node.targets[0].id, ast.walk(node.value)
            if any(isinstance(x, ast.Name) and x.id in later for x in used):
                later.add(name)
            elif name.lstrip("_").isupper():
                found.append(name)
    return found


def flags_in_strings(tree):
    """The flags in strings that are no docstrings and no command to type, by line."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
             for part in node.values}  # fmt: skip
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(getattr(part, "value", "") if isinstance(part, ast.Constant) else "{}"
                           for part in node.values)  # fmt: skip
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in docs | parts else node.value
        flag = FLAG.search(text)
        if flag and not TYPED_COMMAND.search(text[: flag.start()]):
            yield node.lineno, text


@functools.cache
def resolves(name):
    """Whether a dotted name is a module, or something in one, or a field of a class."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            fields = {**getattr(value, "__annotations__", {}), **vars_of(value)}
            if part in fields:
                return True
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def vars_of(value):
    return getattr(value, "__dataclass_fields__", {}) | getattr(value, "model_fields", {})


def second_headlines(doc):
    """The paragraphs of a module's docstring after its first example that introduce none: as if
    another module began there."""
    paragraphs = re.split(r"\n[ ]*\n", doc)
    examples = [k for k, text in enumerate(paragraphs) if text.startswith(">>>")]
    later = paragraphs[examples[0] + 1 :] if examples else []
    return [text for text in later if text[0].isupper() and not text.rstrip().endswith(":")]


def described(tree):
    """The functions and classes with their docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (doc := ast.get_docstring(node)):
            yield node.name, doc + "\n"


def guarding_tests(tree):
    """Of each promise of a docstring the tests that it names. Options that stand below the heading
    "Guarantee" of a recipe are no promise."""
    for name, doc in described(tree):
        for said in GUARANTEE.findall(doc):
            if not said.lstrip().startswith("--"):
                yield name, [re.sub(r"\s+", "", test) for test in TEST.findall(said)]


@functools.cache
def is_a_test(name):
    """Whether a file of tests exists, or the function in it."""
    file, _, test = name.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {test.partition('[')[0] or 'test_'}" in path.read_text("utf-8")


def test_a_public_class_has_no_namesake():
    trees = [(module_of(p), parse(p)) for p in sources("crtlib", "confide")]
    assert duplicates(trees) == {}


def test_two_classes_of_one_name_are_seen():
    trees = [(name, ast.parse("class Answer: ...")) for name in ("a", "b")]
    assert duplicates(trees) == {"Answer": ["a", "b"]}


def test_no_module_takes_what_another_keeps_to_itself():
    found = {p: private_names_of_others(parse(p)) for p in sources(*PACKAGES, "benchmarks")}
    assert {p.name: names for p, names in found.items() if names} == {}


@pytest.mark.parametrize("line", ["from confide.seal import _sign", "from confide import seal"])
def test_a_private_name_that_is_taken_is_seen(line):
    assert private_names_of_others(ast.parse(f"{line}\nseal._sign(1)")) == {"_sign"}


def test_the_library_imports_at_the_top():
    found = {
        str(path.relative_to(ROOT)): names
        for path in sources("crtlib")
        if (names := imports_in_functions(parse(path)))
    }
    assert found.keys() <= IMPORTS_IN_FUNCTIONS.keys()
    assert all(names <= IMPORTS_IN_FUNCTIONS[path] for path, names in found.items()), found


def test_the_library_imports_packages_at_the_top_but_for_a_reason():
    found = {name for path in sources("crtlib") for name in packages_in_functions(parse(path))}
    assert found == LATE_PACKAGES.keys()


def test_a_package_in_a_function_is_seen():
    tree = ast.parse("def f():\n    import pandas as pd\n    from scipy.optimize import brentq")
    assert packages_in_functions(tree) == {"pandas", "scipy"}


def test_the_application_imports_at_the_top_but_in_its_commands():
    found = {
        str(path.relative_to(ROOT)): names
        for path in sources("confide")
        if (names := imports_in_functions(parse(path)))
    }
    assert {path for path in found if not path.startswith(COMMANDS)} <= LATE_IN_THE_APPLICATION, (
        found
    )


def test_a_module_has_one_headline():
    docs = {module_of(p): ast.get_docstring(parse(p)) or ""
            for p in sources("crtlib", "confide")}  # fmt: skip
    assert {name: found for name, doc in docs.items() if (found := second_headlines(doc))} == {}


def test_a_second_headline_is_seen():
    one = "Masks.\n\n>>> mask('a')\n'b'\n\nTwice the same:\n\n>>> mask('b')\n'b'"
    assert second_headlines(one) == []
    assert second_headlines(f"{one}\n\nCopies of a text.") == ["Copies of a text."]


def test_a_guarantee_names_a_test_that_exists():
    found = {
        f"{module_of(path)}.{name}": tests
        for path in sources("crtlib", "confide")
        for name, tests in guarding_tests(parse(path))
    }
    assert len(found) > 40
    assert {name: t for name, t in found.items() if not t or not all(map(is_a_test, t))} == {}


@pytest.mark.parametrize("said", [
    "It holds.", "It holds. Test: ``tests/test_legible.py::test_gone``.",
    "It holds. Test: ``tests/test_gone.py``.",
])  # fmt: skip
def test_a_guarantee_without_its_test_is_seen(said):
    tree = ast.parse(f'def f():\n    """One.\n\n    Guarantee:\n        {said}\n    """')
    ((name, tests),) = guarding_tests(tree)
    assert name == "f" and not (tests and all(map(is_a_test, tests)))


def test_constants_stand_before_the_first_function():
    found = {
        module_of(path): names
        for path in sources("crtlib", "confide")
        if (names := late_constants(parse(path)))
    }
    assert found == {}


def test_a_constant_below_a_function_is_seen():
    tree = ast.parse("def f(): ...\nMOST = 3\nTABLE = {'f': f}\nNAMES = [*TABLE]")
    assert late_constants(tree) == ["MOST"]


def test_an_import_in_a_function_is_seen():
    tree = ast.parse("def f():\n    from crtlib.text import records\n    return records")
    assert imports_in_functions(tree) == {"crtlib.text"}


def test_what_a_script_reads_names_arguments_and_no_flags():
    found = {
        path.relative_to(ROOT).as_posix(): flags
        for path in sources("crtlib", "confide")
        if not path.is_relative_to(ROOT / COMMANDS) and (flags := [*flags_in_strings(parse(path))])
    }
    assert {
        place: flags for place, flags in found.items() if place not in OF_THE_COMMAND_LINE
    } == {}
    assert found.keys() == OF_THE_COMMAND_LINE.keys()


@pytest.mark.parametrize(
    "text", ['f"--out: {path} exists"', '"choose another or --force"', 'f"{a} (--user) {b}"']
)
def test_a_flag_in_a_message_is_seen(text):
    assert [*flags_in_strings(ast.parse(f"raise ValueError({text})"))]


def test_a_command_to_type_and_a_docstring_may_have_flags():
    tree = ast.parse("'''As --out.'''\nsay(f\"{a}; 'crtlib screen --labels {b}' counts\")")
    assert not [*flags_in_strings(tree)]


@pytest.mark.parametrize("top", PACKAGES)
def test_every_role_names_something(top):
    dead = []
    for path in sources(top):
        text, module = path.read_text("utf-8"), module_of(path)
        if module == "crtlib.training.noise_kernel":  # needs Triton
            continue
        classes = [n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef)]
        for name in ROLE.findall(text):
            places = [name, f"{module}.{name}"]
            places += [f"{module}.{owner}.{name}" for owner in classes]
            if not any(resolves(place) for place in places):
                dead.append(f"{path.relative_to(ROOT)}: {name}")
    assert dead == []


def test_every_dotted_name_of_a_page_is_something():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "book").rglob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        if page.name not in ("CHANGELOG.md", "claims_changes.md")  # which name what went
        for name in TICK.findall(page.read_text("utf-8"))
        if name not in GROUPS and not name.endswith(FILES) and not resolves(name)
    ]
    assert dead == []


def missing_files(line):
    """Of the source files that a line of a page names those that are not there. A name without a
    folder is of a folder that the row of a table names, where it names one."""
    named = [ROOT / name for name in SOURCE_FOLDER.findall(line) if line.startswith("|")]
    named = [folder for folder in named if folder.is_dir()]
    folders = named or [ROOT / name for name in ("crtlib", "confide", "book", "tests")]
    return [
        name
        for name in SOURCE_FILE.findall(line)
        if not (ROOT / name).is_file()
        and not any(path for folder in folders for path in folder.rglob(name))
    ]


def test_every_source_file_of_a_page_is_there():
    pages = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        if page.name != "claims_changes.md"  # which names what went
        for line in page.read_text("utf-8").splitlines()
        if "in the history" not in line
        for name in missing_files(line)
    ]
    assert missing == []


def test_a_source_file_that_is_gone_is_seen():
    row = "| `crtlib/accounting`: `privacy_cost.py`, `measures.py`, `docs/architecture.md` |"
    assert missing_files(row) == ["measures.py"]
    assert missing_files("`measures.py` and `docs/gone.md`") == ["docs/gone.md"]


def test_a_name_that_is_gone_is_seen():
    assert resolves("crtlib.accounting.privacy_cost.epsilon") and resolves(
        "crtlib.text.records.Point.id"
    )
    assert not resolves("crtlib.accounting.searches.fixed")
