"""The one door for model folders that others made, and for what else they wrote for us to read.

Whatever such a file makes a library raise becomes one line of our own, and no advice of other tools
is quoted. A configuration keeps what describes a model. The code that it brings or names
(``auto_map``, which ``trust_remote_code`` would run) is left out, never run; a kernel of a hub and
a package of a quantiser are refused. A local folder is read without a network.

>>> keep_model_settings({"model_type": "gpt2", "_attn_implementation": "owner/kernel"}, ())
Traceback (most recent call last):
...
crtlib.foreign_files.ForeignFileError: asks for code of another place (_attn_implementation)
>>> keep_model_settings({"n_layer": 2, "_name_or_path": "owner/model"}, ("n_layer",))
{'n_layer': 2}
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from crtlib.checks import MachineError, printable
from crtlib.files import StrPath, read_text, why_not_regular

NOT_AS_WRITTEN = "is not of the form in which it is written; make it again"
"""Of a file in a folder of ours whose marker somebody has made anew."""
FILE_SUFFIXES = (".json", ".safetensors", ".jinja")
"""Of what lies in a model folder, what is read as a file."""
ADAPTER_FILE = "adapter_config.json"
"""A folder with it brings another model along, by the name of its base."""
MAX_SETTING = 1 << 48
"""The largest whole number that a configuration may hold."""
MAX_LAYERS_OR_EXPERTS = 10_000
"""Layers, or experts of a layer, that a configuration may ask for."""
POSITIVE_SETTINGS = ("num_attention_heads", "hidden_size", "vocab_size")
"""Sizes that every model has, as ``transformers`` calls them."""
LABEL_SETTINGS = ("id2label", "label2id")
"""Settings whose names are labels of others."""
UNREAD_SETTINGS = ("auto_map", "_name_or_path", "dtype", "torch_dtype")
"""What a configuration says of itself and is not read: the code that it brings (``auto_map``), its
name, its number format."""
OFFLINE_VARIABLES = {"HF_HUB_OFFLINE": "1", "USE_HUB_KERNELS": "0"}
"""Environment in which ``transformers`` and what it starts ask no hub for anything."""
_IMPLEMENTATION_KEY = re.compile("_implementation(_internal)?$")
_KERNEL_KEY = re.compile("^(use_kernels?|kernel_config)$")
_QUANTISER_KEY = re.compile("^(quantization|compression)(_config)?$")
_WORD = re.compile(r"[\w.\- ]{0,64}")


class ForeignFileError(ValueError):
    """What we say of a file that others made. :func:`refuse_whatever_fails` puts in front of it
    whose file it is, once."""

    placed = False


@contextlib.contextmanager
def refuse_whatever_fails(
    where: str, what: str, *, ours: type[Exception] | None = None
) -> Iterator[None]:
    """Whatever is raised inside becomes ``where: what (its type)``, one line.

    Args:
        where: What the user named: an option with its value, or a file.
        what: What is the matter then, in our own words.
        ours: An error that what stands inside raises in our own words, and that passes.

    Raises:
        ForeignFileError: For every error, a panic of Rust code and an overflow too.
        MachineError: Where there is not enough memory.
        OSError: Where the machine, not the file, is at fault (it has a number).

    Guarantee:
        No message of another library is printed, which may quote text of the file or give advice
        that we would not. Test: ``tests/models/test_foreign_folders.py``.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except ForeignFileError as error:
        raise error if error.placed else _placed(where, str(error)) from None
    except MemoryError:
        raise MachineError(f"{where}: asks for more memory than there is") from None
    except OSError as error:
        if error.errno and not isinstance(error, FileNotFoundError):
            raise
        raise _placed(where, what) from None
    except BaseException as error:  # a PanicException is no Exception
        if ours and isinstance(error, ours) and not isinstance(error, UnicodeError):
            raise
        raise _placed(where, f"{what} ({type(error).__name__})") from None


def _placed(where: str, what: str) -> ForeignFileError:
    error = ForeignFileError(f"{where}: {what}")
    error.placed = True
    return error


@contextlib.contextmanager
def ask_no_hub(name: StrPath) -> Iterator[None]:
    """Without requests to a hub while ``name``, a local folder, is read; where it is none, the hub
    was asked for.

    Guarantee:
        Reading a local folder opens no connection. Test:
        ``tests/models/test_foreign_folders.py::test_a_folder_can_fetch_nothing``.
    """
    if not Path(name).is_dir():
        yield
        return
    from huggingface_hub import constants

    before = {key: os.environ.get(key) for key in OFFLINE_VARIABLES}
    offline = constants.HF_HUB_OFFLINE  # read from the environment once, when it was imported
    os.environ.update(OFFLINE_VARIABLES)
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextlib.contextmanager
def foreign_model(name: StrPath, where: str, what: str) -> Iterator[None]:
    """What reads a model, or its tokenizer, of a folder or a hub stands inside: no request where it
    is a folder (:func:`ask_no_hub`), and one line of ours for whatever fails
    (:func:`refuse_whatever_fails`). An adapter is refused, as it would bring another model, a pipe
    or a device, of which nobody knows that it ends, and a link that leads nowhere."""
    with refuse_whatever_fails(where, what):
        for path in sorted(Path(name).iterdir()) if Path(name).is_dir() else ():
            if not (path.exists() or path.name.startswith(".")):  # else found after the training
                raise ForeignFileError(f"its {printable(path.name)} is a link that leads nowhere")
            folder = path.is_dir() and path.suffix not in FILE_SUFFIXES
            if not folder and (told := why_not_regular(path)):
                raise ForeignFileError(f"its {printable(path.name)} {told}")
        if (Path(name) / ADAPTER_FILE).is_file():
            raise ForeignFileError("holds an adapter; merge it into its base and save that")
        with ask_no_hub(name):
            yield


def load_foreign_config(name: StrPath, where: str) -> Any:
    """The configuration of a model of ``transformers``, of a folder or a hub id, as far as
    :func:`keep_model_settings` keeps it; dtype, attention and experts are left to us.

    Raises :class:`ForeignFileError` in one line that begins with ``where``.
    """
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    here = Path(name).is_dir()
    what = "its config.json cannot be read" if here else "is no folder, and no model of the hub"
    with foreign_model(name, where, what):
        if here and not (Path(name) / "config.json").is_file():
            raise ForeignFileError("holds no config.json of a model of transformers")
        raw, _ = PreTrainedConfig.get_config_dict(str(name))
        if not isinstance(raw, dict) or raw.get("model_type") not in CONFIG_MAPPING:
            raise ForeignFileError("its config.json is of no model that is known here")
        kind = raw["model_type"]
        if kind == "mistral" and "layer_types" in raw:  # as AutoConfig does
            kind = "ministral"
        made = CONFIG_MAPPING[kind]
        known = {*made.__dataclass_fields__, *made.attribute_map, *made.sub_configs}
        kept = keep_model_settings(raw, known)
    with foreign_model(name, where, "its config.json describes no model that can be built"):
        config = made.from_dict(kept, name_or_path=str(name))
        config._attn_implementation = config._experts_implementation = None
        text = config.get_text_config()
        for key in POSITIVE_SETTINGS:
            size = getattr(text, key, 1)
            if type(size) is int and size < 1:
                raise ForeignFileError(f"its config.json says {key}={size}; 1 at least")
    return config


def keep_model_settings(raw: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Of what a configuration says, what describes a model: the settings that its class declares
    (``known``), and others that hold numbers and single words only, as older files name them.

    What names an implementation is left out, whatever it names; one of another place, a kernel and
    a quantiser are refused.

    Raises:
        ForeignFileError: Also for a number that no model has.

    Guarantee:
        A configuration that is kept has no name of a repository or a package from which something
        would be loaded. Test: ``tests/models/test_foreign_folders.py::
        test_a_folder_can_fetch_nothing``.
    """
    kept: dict[str, Any] = {}
    for key, value in raw.items():
        if _IMPLEMENTATION_KEY.search(key):
            if any("/" in word for word in _texts(value)):
                raise ForeignFileError(f"asks for code of another place ({key})")
            continue
        if _KERNEL_KEY.match(key):
            if value:
                raise ForeignFileError(f"asks for code of another place ({key})")
            continue
        if _QUANTISER_KEY.match(key):
            if value:
                raise ForeignFileError("is quantised; save it with its weights in full precision")
            continue
        _check_numbers(key, value)
        if isinstance(value, Mapping) and key in known and key not in LABEL_SETTINGS:
            value = keep_model_settings(value, value)
        if key in known or all(_WORD.fullmatch(word) for word in _texts(value)):
            kept[key] = value
    return {key: value for key, value in kept.items() if key not in UNREAD_SETTINGS}


def _check_numbers(key: str, value: Any) -> None:
    """Refuse a whole number that no model has, before anything counts up to it."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    most = MAX_LAYERS_OR_EXPERTS if re.search("layer|expert", key) else MAX_SETTING
    if whole and abs(value) > most:
        shown = f"{value:.3g}" if abs(value) < 1e300 else "more"
        raise ForeignFileError(f"its config.json says {key}={shown}; {most} at most")


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, names of its objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def load_foreign_tokenizer(path: StrPath, where: str) -> Any:
    """The tokenizer in a ``tokenizer.json``, which neither cuts nor pads whatever the file says,
    after it has read a text without an error. Raises :class:`ForeignFileError` in one line."""
    with refuse_whatever_fails(where, "its tokenizer cannot be read"):
        if told := why_not_regular(path):
            raise ForeignFileError(f"its tokenizer.json {told}")
        content = json.loads(read_text(path))
        content |= {"truncation": None, "padding": None}  # as many as it says are made at once
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.encode("My ID is 8517, é 😀.", add_special_tokens=False)
    return tokenizer
