"""The key file of a class: 256 random bits, from which each student's seed and key follow.

>>> derive_seed(b"s" * 32, "attack", "ann") == derive_seed(b"s" * 32, "attack", "bob")
False
"""

import hmac
import json
import re
import secrets
import unicodedata
from pathlib import Path
from typing import Any

from crtlib import files

KEY_FORMAT = "crtcourse/key/1"
NAME = re.compile(r"\w[\w .'@-]{0,63}")
"""A name that can be that of a file or a folder."""


def derive_seed(secret: bytes, *words: str) -> int:
    """The seed of one student's lab: 256 bits, an HMAC of the words."""
    return int.from_bytes(hmac.digest(secret, json.dumps(words).encode(), "sha256"))


def read_key(path: Path) -> dict[str, Any]:
    """Read a key file: ``secret`` in hexadecimal digits, and ``students`` by name. Raises
    ``ValueError`` for any other file."""
    with files.open_plain_or_gzip(path) as file:
        try:
            key = json.loads(file.read())
        except (ValueError, RecursionError):
            key = None
    if not isinstance(key, dict) or key.get("schema") != KEY_FORMAT:
        raise ValueError(f"{path}: is no key file of 'crtbook lab'")
    return key


def make_key() -> dict[str, Any]:
    """Make the key of a new class."""
    return {"schema": KEY_FORMAT, "secret": secrets.token_hex(32), "students": {}}


def write_key(key: dict[str, Any], path: Path) -> None:
    """Write a key file, atomically, that only its owner can read."""
    files.write_text(path, json.dumps(key) + "\n", mode=0o600)


def read_names(path: Path) -> list[str]:
    """The students of a class, one on each line. Raises ``ValueError`` for a name that cannot be a
    file's, or that occurs twice."""
    with files.open_plain_or_gzip(path) as file:
        lines = file.read().decode("utf-8-sig", "replace").splitlines()
    names = [unicodedata.normalize("NFC", line.strip()) for line in lines if line.strip()]
    for index, name in enumerate(names):
        earlier = {other.casefold() for other in names[:index]}
        if not NAME.fullmatch(name) or name.casefold() in earlier:
            raise ValueError(
                f"{path}: line {name[:80]!r}: must be a name of letters, digits, spaces and .'@-, "
                "once"
            )
    return names
