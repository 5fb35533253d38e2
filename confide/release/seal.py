"""The seal: a signature that shows the recipient of a release that nobody else has edited it.

The private key (Ed25519, 0600) is beside the odometer; the public key travels with what is signed.
The seal catches edits by others. It does not catch a lying releaser: whoever has the key can sign
anything.

>>> key = Ed25519PrivateKey.generate()
>>> check_signature(sign_value({"epsilon": 3}, key), "demo")["epsilon"]
3
>>> check_signature(sign_value({"epsilon": 3}, key) | {"epsilon": 1}, "demo")
Traceback (most recent call last):
ValueError: demo: was changed after it was signed
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from confide.odometer_lines import SIGNING_KEY_FILE
from crtlib import files, outputs
from crtlib.checks import raise_machine_fault
from crtlib.files import StrPath
from crtlib.text import jsonl

MAX_SIGNED_BYTES = 1 << 26
"""The most bytes in a signed file."""

RELEASE_FORMAT = "crtlib/release/1"
RELEASE_FILE = outputs.SEAL_FILE


def ensure_signing_key(folder: StrPath) -> Ed25519PrivateKey:
    """The private key beside an odometer. If there is none it is created, by exactly one of several
    processes. Raises ``ValueError`` for a file that is not a key, or that others may read."""
    path = Path(folder) / SIGNING_KEY_FILE
    files.check_owned(folder)
    files.remove_stale_parts(path)
    if not path.exists():
        with files.locked_part_file(path, 0o600) as part_file, part_file.open("rb+") as file:
            file.write(Ed25519PrivateKey.generate().private_bytes_raw())
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(part_file, path)
            part_file.unlink()
    files.check_private_key(path)
    try:
        return Ed25519PrivateKey.from_private_bytes(files.read_bytes(path))
    except ValueError:
        raise ValueError(f"{path}: is not a signing key") from None


def canonical_bytes(value: Mapping[str, Any]) -> bytes:
    """The bytes that are signed: JSON with sorted keys, without the signature."""
    unsigned = {name: field for name, field in value.items() if name != "signature"}
    return json.dumps(unsigned, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sign_value(value: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """The value with the public key and a signature."""
    with_key = {**value, "public_key": key.public_key().public_bytes_raw().hex()}
    return with_key | {"signature": key.sign(canonical_bytes(with_key)).hex()}


def check_signature(
    value: Mapping[str, Any], name: str, public: str | None = None
) -> dict[str, Any]:
    """Return the value if its signature is valid.

    Args:
        value: A JSON object with its ``public_key`` and ``signature``.
        name: What it is called in an error.
        public: The key that must have signed it, in hexadecimal; None: the one that it names.

    Returns:
        The value, with its key and its signature.

    Raises:
        ValueError: In one line, if the signature is not valid or is by another key.

    Guarantee:
        Changed content, or content signed by another key, does not pass. Test:
        ``tests/release/test_released_folder.py::test_a_signature_is_of_this_content_by_this_key``.
    """
    try:
        key, signature = str(value["public_key"]), bytes.fromhex(value["signature"])
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(
            signature, canonical_bytes(value)
        )
    except KeyError:
        raise ValueError(f"{name}: is not signed; it is damaged, or of another version") from None
    except (InvalidSignature, ValueError, TypeError, RecursionError):
        raise ValueError(f"{name}: was changed after it was signed") from None
    if public is not None and key != public:
        raise ValueError(f"{name}: was signed with another key, {key[:12]}… and not {public[:12]}…")
    return dict(value)


def read_signed(path: StrPath, public: str | None = None) -> dict[str, Any]:
    """Read a signed JSON object from a file and check its signature (:func:`check_signature`)."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_SIGNED_BYTES:
            raise ValueError
        value = jsonl.load_strict_json(files.read_text(path))
        if not isinstance(value, dict):
            raise ValueError
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise_machine_fault(error)
        raise ValueError(f"{path}: is damaged") from None
    return check_signature(value, str(path), public)
