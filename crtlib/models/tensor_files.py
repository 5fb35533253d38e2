"""The numbers in the safetensors files of a model, read without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from crtlib import files
from crtlib.arguments import argument_error
from crtlib.files import StrPath


def hash_tensors(folder: StrPath) -> str | None:
    """The SHA-256 of the numbers in a model's folder; None if it has none.

    It does not depend on the names of tensors, on the number and order of the files they are in, or
    on what else these hold."""
    pieces = []
    for path in sorted(Path(folder).glob("model*.safetensors")):
        with files.open_regular_file(path) as file:
            size = int.from_bytes(file.read(8), "little")
            try:
                if size > path.stat().st_size - 8:
                    raise ValueError("a header beyond the file")
                header = json.loads(file.read(size))
                header.pop("__metadata__", None)
                for entry in header.values():
                    start, end = entry["data_offsets"]
                    file.seek(8 + size + start)
                    digest, remaining_bytes = hashlib.sha256(), end - start
                    while remaining_bytes and (block := file.read(min(remaining_bytes, 1 << 20))):
                        digest.update(block)
                        remaining_bytes -= len(block)
                    pieces.append([entry["dtype"], entry["shape"], digest.hexdigest()])
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise argument_error("init", f"{path} is damaged") from None
    text = json.dumps(sorted(pieces, key=str), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest() if pieces else None
