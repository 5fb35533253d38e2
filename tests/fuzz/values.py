"""Bad values of options and of notebook parameters, and bad folders."""

import gzip
import json
import os
import pickle
import shutil
import struct

NUMBERS = [
    "nan", "inf", "-inf", "-0.0", "0", "-1", "1e300", "-1e300", "1e-320", "1e308", "1e23",
    "0.9999999999", "1000000000000000000000000000000", "9223372036854775808", "0x10", "1_0", "1,5",
]  # fmt: skip
WORDS = [
    "", " ", "x", "é", "\udcff", "a" * 5000, "../..", "=1+1", "[" * 3000, "{}", "null", "-", "--",
    "regex:", "regex:none.toml", "list:", "tagger:.", "ner:.", "oracle+", "+", "%2B", "cuda:99",
    "turn\nturn", "hub:", "hub:x", "<b>", "; rm x", "$HOME", "*", "user", "gammas=[[[[", "seeds=-1",
    "shapes.lstm.hidden=0", "=", "seeds=1e300", "seeds=nan", "corpora=['x']",
]  # fmt: skip
ODD = [None, True, -1, 0, 1e308, float("nan"), float("-inf"), 10**400, [], [[]], {}, {"a": 1}, b"x"]
"""Values of other types, for parameters of a notebook."""
DIALOGUE = {"id": "d", "user": "u", "turns": [
    {"speaker": "USR", "text": "I am Ada", "secrets": [{"kind": "name", "start": 5, "end": 8}]},
]}  # fmt: skip


def files(home):
    """Bad files and folders, by name, in a folder of their own."""
    good = json.dumps(DIALOGUE).encode()
    folder = home / "bad"
    folder.mkdir()
    for name, content in {
        "empty.jsonl": b"", "blank.jsonl": b"\n\n", "binary.jsonl": os.urandom(500),
        "null.jsonl": b"null\n", "deep.jsonl": b"[" * 10**5, "half.jsonl": good[:40],
        "twice.jsonl": good + b"\n" + good, "utf16.jsonl": good.decode().encode("utf-16"),
        "surrogate.jsonl": good.replace(b"Ada", b"\\ud800"), "nul.jsonl": b"\0" * 1000,
        "kind.jsonl": good.replace(b'"name"', b'"\\udfff"'), "digits.jsonl": b"9" * 10**5,
        "line.jsonl": b"a" * 10**6, "number.jsonl": b'{"id": 1e999, "user": NaN}',
        "torn.jsonl.gz": gzip.compress(good)[:-9], "not.jsonl.gz": b"\x1f\x8bnothing",
        "table.csv": b"example,secret\n1,=1+1\n", "headerless.csv": b"mail-17,4111-1111\n",
        "nan.csv": b"example,secret,p,r\n1,a,nan,1e-320\n", "wide.csv": b"," * 10**5,
        "odd.csv": b'example,secret\n"1,a\n', "fake.parquet": b"PAR1junkPAR1",
        "list.toml": b"[", "pattern.toml": b"[a]\npattern = '(a+)+$'\n",
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.jsonl")
    os.mkfifo(folder / "pipe.csv")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    (folder / "folder" / "foreign").touch()
    model = {"model.safetensors": struct.pack("<Q", 1 << 60) + b"{}", "model.json": b"{}"}
    _model(folder / "giant_header", model)
    _model(folder / "empty_json", {"model.safetensors": b"", "model.json": b""})
    _model(folder / "list_json", {**model, "model.json": b"[1]", "experiment.json": b"[]"})
    _model(folder / "pickled", {"pytorch_model.bin": pickle.dumps({"a": 1}), "config.json": b"{}"})
    remote = {"auto_map": {"AutoModelForCausalLM": "code.Model"}, "model_type": "own"}
    _model(folder / "remote", {
        **model, "config.json": json.dumps(remote).encode(),
        "code.py": b"open('ran', 'w')\nModel = None\n",
    })  # fmt: skip
    (folder / "remote" / "model.json").unlink()
    _model(folder / "marker", {"crtlib.json": b'{"schema": "crtlib/output/2"}'})
    for name in ("tokenizer.json", "model.json", "model.safetensors", "experiment.json"):
        for how, content in (("empty", b""), ("list", b"[]"), ("deep", b"[" * 10**5)):
            shutil.copytree(home / "model", folder / f"{name}_{how}")
            (folder / f"{name}_{how}" / name).write_bytes(content)
    huge = json.loads((home / "model" / "model.json").read_text()) | {"layers": 10**9}
    shutil.copytree(home / "model", folder / "huge")
    (folder / "huge" / "model.json").write_text(json.dumps(huge))
    for key, value in {"n_layer": 10**9, "n_embd": 2**24, "n_positions": 10**12}.items():
        config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, key: value}
        _model(folder / f"config_{key}", {
            "config.json": json.dumps(config).encode(), "tokenizer.json": b"{}",
            "model.safetensors": (home / "model" / "model.safetensors").read_bytes(),
        })  # fmt: skip
    return sorted(folder.iterdir())


def _model(folder, content):
    folder.mkdir()
    for name, raw in content.items():
        (folder / name).write_bytes(raw)
