"""Build the wheels of crtlib and crtbook, and crtlib's sdist, into ``_build/dist``, and check them:
one version, which CHANGELOG.md describes, metadata that the standard accepts, and the package data.
Then install crtlib's wheel alone, with what it asks for, and import it; add what the command needs,
and run commands that need no PyTorch; and
crtbook's beside it, in an environment that has the rest. Exits 1 where something is wrong.

    python benchmarks/release.py
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "_build" / "dist"
DATA = (
    "crtlib/py.typed",
    "confide/py.typed",
    "confide/commands/project/crtlib.toml",
    "confide/reports/templates/style.css",
    "confide/text/templates/label.html",
    "crtlib/screening/expressions/customersim.toml",
    "crtlib/screening/expressions/multiwoz.toml",
    "crtlib/screening/expressions/schema_guided.toml",
    "crtlib/screening/expressions/wikitext2.toml",
    "crtlib/screening/words.txt",
    "crtlib/text/templates/customersim.toml",
)
COMMANDS = (
    "--help",
    "account --delta 1e-5 --batch-size 100 --points 10000 --epochs 10 --epsilon 2 --gamma 0.1",
    "ingest messages.csv --yes --out corpus",
    "screen corpus --policy regex:customersim --conservative everything --out screened",
)
MESSAGES = "thread,user,sent,text\n" + "".join(
    f"t{k // 4},u{k // 4},2026-01-01 10:{k:02d},my number is {555_0100 + k}\n" for k in range(40)
)


def version(text: str) -> str:
    """The version in ``crtlib/version.py``, the only place that has one."""
    return re.findall(r'(?m)^__version__ = "(.+)"$', text)[0]


def entry(changelog: str, number: str) -> str:
    """What CHANGELOG.md says of a version; ``ValueError`` where it says nothing."""
    parts = re.split(r"(?m)^## ", changelog)
    for part in parts[1:]:
        title, _, text = part.partition("\n")
        if title.split()[0] == number and text.strip():
            return text.strip()
    raise ValueError(f"CHANGELOG.md: has no entry for version {number}")


def check(metadata: bytes, number: str, names: set[str]) -> None:
    """``ValueError`` for bad metadata, another version, or package data that is left out."""
    facts = Metadata.from_email(metadata, validate=True)
    if str(facts.version) != number:
        raise ValueError(f"version={facts.version}: must be {number}, as in crtlib/version.py")
    for field in ("summary", "license_expression", "requires_python", "description"):
        if not getattr(facts, field):
            raise ValueError(f"metadata: {field} is missing")
    if missing := [name for name in DATA if name not in names]:
        raise ValueError(f"left out: {', '.join(missing)}")


def build(folder: Path, *kinds: str) -> None:
    """Build what is in ``folder``; what an earlier build left there would be packed again."""
    shutil.rmtree(folder / "build", ignore_errors=True)
    command = [sys.executable, "-m", "build", *kinds, "--outdir", OUT, folder]
    if subprocess.run(command, cwd=OUT, stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"{folder}: cannot be built (see above)")


def alone() -> None:
    """Install and run the wheels in an empty folder; print seconds and megabytes."""
    crtlib, crtbook = sorted(OUT.glob("*.whl"))[::-1]
    with tempfile.TemporaryDirectory() as folder:
        place, start = Path(folder), time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", place / "own"], check=True)
        pip = [place / "own/bin/python", "-m", "pip", "install", "-q", crtlib]
        subprocess.run(pip, check=True)
        size = sum(f.stat().st_size for f in place.rglob("*") if not f.is_symlink())
        print(f"installed alone: {size / 1e6:.0f} MB, {time.perf_counter() - start:.0f} s")
        subprocess.run([place / "own/bin/python", "-c", "import crtlib"], cwd=place, check=True)
        subprocess.run([*pip[:-1], f"{crtlib}[app]"], check=True)
        (place / "messages.csv").write_text(MESSAGES)
        pip = [
            sys.executable,
            *["-m", "pip", "install", "-q", "--no-deps", "--target"],
            place / "site",
        ]
        subprocess.run([*pip, crtlib, crtbook], check=True)
        beside = os.environ | {"PYTHONPATH": str(place / "site")}
        own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        lines = [(place / "own/bin/crtlib", words, own) for words in COMMANDS]
        lines.append((place / "site/bin/crtbook", "claims --paper hush", beside))
        for program, words, environment in lines:
            start = time.perf_counter()
            command = [program, *words.split()]
            done = subprocess.run(
                command, cwd=place, env=environment, capture_output=True, text=True
            )
            print(f"{program.name} {words.split()[0]}: {time.perf_counter() - start:.1f} s")
            if done.returncode:
                sys.exit(done.stderr)


def main() -> None:
    """Build, check, install and run; print the files."""
    number = version((ROOT / "crtlib" / "version.py").read_text("utf-8"))
    try:
        entry((ROOT / "CHANGELOG.md").read_text("utf-8"), number)
    except ValueError as error:
        sys.exit(str(error))
    for name, line in (
        ("CITATION.cff", f"version: {number}"),
        ("book/pyproject.toml", f'version = "{number}"'),
    ):
        if f"\n{line}\n" not in (ROOT / name).read_text("utf-8"):
            sys.exit(f"{name}: must say {line}")
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    build(ROOT)
    build(ROOT / "book", "--wheel")
    wheel, sdist = OUT / f"crtlib-{number}-py3-none-any.whl", OUT / f"crtlib-{number}.tar.gz"
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = f"crtlib-{number}.dist-info/METADATA"
            check(archive.read(info), number, set(archive.namelist()))
        with tarfile.open(sdist) as archive:
            top = f"crtlib-{number}/"
            names = {name.removeprefix(top) for name in archive.getnames()}
            file = archive.extractfile(top + "PKG-INFO")
            check(file.read() if file else b"", number, names)
    except (ValueError, KeyError, ExceptionGroup) as error:
        sys.exit(f"{wheel.name}: {error}")
    for path in sorted(OUT.iterdir()):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    alone()


if __name__ == "__main__":
    main()
