"""Build sdist and wheel into ``_build/dist`` and check what is in them: one version, which
CHANGELOG.md describes, metadata that the standard accepts, and the package data. Exits 1 otherwise.

    python benchmarks/release.py
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parent.parent
DATA = (
    "crtlib/py.typed",
    "crtlib/commands/project/crtlib.toml",
    "crtlib/reports/templates/style.css",
    "crtlib/screening/words.txt",
)


def version(text: str) -> str:
    """The version in ``crtlib/__init__.py``, the only place that has one."""
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
        raise ValueError(f"version={facts.version}: must be {number}, as in crtlib/__init__.py")
    for field in ("summary", "license_expression", "requires_python", "description"):
        if not getattr(facts, field):
            raise ValueError(f"metadata: {field} is missing")
    if missing := [name for name in DATA if name not in names]:
        raise ValueError(f"left out: {', '.join(missing)}")


def main() -> None:
    """Build and check; print the two files."""
    number = version((ROOT / "crtlib" / "__init__.py").read_text(encoding="utf-8"))
    try:
        entry((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), number)
    except ValueError as error:
        sys.exit(str(error))
    if f"\nversion: {number}\n" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8"):
        sys.exit(f"CITATION.cff: must say version: {number}")
    out = ROOT / "_build" / "dist"
    shutil.rmtree(out, ignore_errors=True)
    # What an earlier build left there would be packed again, also what is deleted since.
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    build = [sys.executable, "-m", "build", "--outdir", out, ROOT]
    if subprocess.run(build, stdout=subprocess.DEVNULL).returncode:
        sys.exit("build: failed (see above)")
    (wheel,), (sdist,) = list(out.glob("*.whl")), list(out.glob("*.tar.gz"))
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
    print(wheel, sdist, sep="\n")


if __name__ == "__main__":
    main()
