"""The single entry point for model folders, and any other files, that others made for us to read.

Whatever such a file makes a library raise becomes one line of our own, and no advice from other
tools is quoted. Of a configuration, only what describes a model is kept. Code that it brings or
names (``auto_map``, which ``trust_remote_code`` would run) is left out and never run; kernels from
a hub and packages for quantisation are refused. A local folder is read without a network.

>>> keep_model_settings({"model_type": "gpt2", "_attn_implementation": "owner/kernel"}, ())
Traceback (most recent call last):
...
crtlib.foreign_files.ForeignFileError: asks for code from elsewhere (_attn_implementation)
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

NOT_AS_WRITTEN = "is not in the format that crtlib writes; make it again"
"""The message for a file in a folder of ours whose marker somebody has rewritten."""
FILE_SUFFIXES = (".json", ".safetensors", ".jinja")
"""The suffixes of what is read as a file in a model folder."""
ADAPTER_FILE = "adapter_config.json"
"""A folder with this file brings in another model, by the name of its base."""
MAX_SETTING = 1 << 48
"""The largest whole number that a configuration may hold."""
MAX_LAYERS_OR_EXPERTS = 10_000
"""The most layers, or experts in a layer, that a configuration may ask for."""
POSITIVE_SETTINGS = ("num_attention_heads", "hidden_size", "vocab_size")
"""Sizes that every model has, as ``transformers`` calls them."""
LABEL_SETTINGS = ("id2label", "label2id")
"""Settings whose keys or values are labels that others chose."""
UNREAD_SETTINGS = ("auto_map", "_name_or_path", "dtype", "torch_dtype")
"""Settings of a configuration that are not read: the code that it brings (``auto_map``), its name
and its number format."""
OFFLINE_VARIABLES = {"HF_HUB_OFFLINE": "1", "USE_HUB_KERNELS": "0"}
"""The environment in which ``transformers`` and what it starts send no request to a hub."""
_IMPLEMENTATION_KEY = re.compile("_implementation(_internal)?$")
_KERNEL_KEY = re.compile("^(use_kernels?|kernel_config)$")
_QUANTISER_KEY = re.compile("^(quantization|compression)(_config)?$")
_WORD = re.compile(r"[\w.\- ]{0,64}")


class ForeignFileError(ValueError):
    """Our own message about a file that others made. :func:`refuse_whatever_fails` puts the place
    of the file in front of it, once."""

    placed = False


@contextlib.contextmanager
def refuse_whatever_fails(
    where: str, what: str, *, ours: type[Exception] | None = None
) -> Iterator[None]:
    """Turn whatever is raised inside into ``where: what (its type)``, in one line.

    Args:
        where: What the user named: an option with its value, or a file.
        what: What is wrong then, in our own words.
        ours: An error that the code inside raises in our own words; it passes unchanged.

    Raises:
        ForeignFileError: For every other error, including a panic of Rust code and an overflow.
        MachineError: If there is not enough memory.
        OSError: If the machine, not the file, is at fault (it has a number).

    Guarantee:
        No message of another library is printed: it may quote text of the file, or give advice that
        this library would not give. Test: ``tests/models/test_foreign_folders.py``.
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
    """Prevent requests to a hub while ``name`` is read, if it is a local folder. If it is not, the
    hub is what the user asked for.

    Guarantee:
        Reading a local folder opens no connection. Test:
        ``tests/models/test_foreign_folders.py::test_a_folder_can_fetch_nothing``.
    """
    if not Path(name).is_dir():
        yield
        return
    from huggingface_hub import constants

    saved_variables = {key: os.environ.get(key) for key in OFFLINE_VARIABLES}
    offline = constants.HF_HUB_OFFLINE  # read from the environment once, when it was imported
    os.environ.update(OFFLINE_VARIABLES)
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        for key, value in saved_variables.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextlib.contextmanager
def foreign_model(name: StrPath, where: str, what: str) -> Iterator[None]:
    """The context in which a model, or its tokenizer, is read from a folder or a hub: no requests
    are sent for a folder (:func:`ask_no_hub`), and whatever fails gives one line of ours
    (:func:`refuse_whatever_fails`).

    Refused are an adapter, which would bring in another model, a pipe or a device, which may never
    end, and a link that leads nowhere."""
    with refuse_whatever_fails(where, what):
        for path in sorted(Path(name).iterdir()) if Path(name).is_dir() else ():
            if not (path.exists() or path.name.startswith(".")):  # or found only after training
                raise ForeignFileError(f"its {printable(path.name)} is a link that leads nowhere")
            folder = path.is_dir() and path.suffix not in FILE_SUFFIXES
            if not folder and (reason := why_not_regular(path)):
                raise ForeignFileError(f"its {printable(path.name)} {reason}")
        if (Path(name) / ADAPTER_FILE).is_file():
            raise ForeignFileError("holds an adapter; merge it into its base and save that")
        with ask_no_hub(name):
            yield


def load_foreign_config(name: StrPath, where: str) -> Any:
    """The configuration of a ``transformers`` model, from a folder or a hub id, as far as
    :func:`keep_model_settings` keeps it. It does not decide dtype, attention and experts.

    Raises :class:`ForeignFileError` in one line that begins with ``where``.
    """
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    is_folder = Path(name).is_dir()
    fault = "is neither a folder nor a model on the hub"
    if is_folder:
        fault = "its config.json cannot be read"
    with foreign_model(name, where, fault):
        if is_folder and not (Path(name) / "config.json").is_file():
            raise ForeignFileError("holds no config.json of a transformers model")
        config_dict, _ = PreTrainedConfig.get_config_dict(str(name))
        if not isinstance(config_dict, dict) or config_dict.get("model_type") not in CONFIG_MAPPING:
            raise ForeignFileError("its config.json is for a model that is not known here")
        kind = config_dict["model_type"]
        if kind == "mistral" and "layer_types" in config_dict:  # as AutoConfig does
            kind = "ministral"
        config_class = CONFIG_MAPPING[kind]
        declared = {
            *config_class.__dataclass_fields__,
            *config_class.attribute_map,
            *config_class.sub_configs,
        }
        settings = keep_model_settings(config_dict, declared)
    with foreign_model(name, where, "its config.json describes no model that can be built"):
        config = config_class.from_dict(settings, name_or_path=str(name))
        config._attn_implementation = config._experts_implementation = None
        text = config.get_text_config()
        for key in POSITIVE_SETTINGS:
            size = getattr(text, key, 1)
            if type(size) is int and size < 1:
                raise ForeignFileError(f"its config.json says {key}={size}; must be at least 1")
    return config


def keep_model_settings(raw: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The settings of a configuration that describe a model: those that its class declares
    (``known``), and others that hold only numbers and single words, as older files name them.

    A setting that names an implementation is left out, whatever it names. An implementation from
    another place, a kernel and a quantiser are refused.

    Raises:
        ForeignFileError: For what is refused, and for a number that no model has.

    Guarantee:
        The settings that are kept name no repository or package from which something would be
        loaded. Test: ``tests/models/test_foreign_folders.py::
        test_a_folder_can_fetch_nothing``.
    """
    settings: dict[str, Any] = {}
    for key, value in raw.items():
        if _IMPLEMENTATION_KEY.search(key):
            if any("/" in word for word in _texts(value)):
                raise ForeignFileError(f"asks for code from elsewhere ({key})")
            continue
        if _KERNEL_KEY.match(key):
            if value:
                raise ForeignFileError(f"asks for code from elsewhere ({key})")
            continue
        if _QUANTISER_KEY.match(key):
            if value:
                raise ForeignFileError("is quantised; save it with its weights in full precision")
            continue
        _check_numbers(key, value)
        if isinstance(value, Mapping) and key in known and key not in LABEL_SETTINGS:
            value = keep_model_settings(value, value)
        if key in known or all(_WORD.fullmatch(word) for word in _texts(value)):
            settings[key] = value
    return {key: value for key, value in settings.items() if key not in UNREAD_SETTINGS}


def _check_numbers(key: str, value: Any) -> None:
    """Refuse a whole number that no model has, before anything counts up to it."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    largest = MAX_LAYERS_OR_EXPERTS if re.search("layer|expert", key) else MAX_SETTING
    if is_whole and abs(value) > largest:
        shown = f"{value:.3g}" if abs(value) < 1e300 else "more"
        raise ForeignFileError(f"its config.json says {key}={shown}; must be at most {largest}")


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, the names in its objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def load_foreign_tokenizer(path: StrPath, where: str) -> Any:
    """The tokenizer in a ``tokenizer.json``, after it has read a text without an error. It neither
    cuts nor pads, whatever the file says. Raises :class:`ForeignFileError` in one line."""
    with refuse_whatever_fails(where, "its tokenizer cannot be read"):
        if reason := why_not_regular(path):
            raise ForeignFileError(f"its tokenizer.json {reason}")
        content = json.loads(read_text(path))
        content |= {"truncation": None, "padding": None}  # padding of any length is made at once
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.encode("My ID is 8517, é 😀.", add_special_tokens=False)
    return tokenizer
