"""What is carried to a machine without a network: the model in parts, joined and compared there."""

import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "carry.py"


@pytest.fixture
def carry(monkeypatch):
    spec = importlib.util.spec_from_file_location("carry", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "install", installed)
    return module


def installed(wheels, site):
    """As pip would do it, without pip."""
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(site)


@pytest.fixture
def folders(carry, tmp_path):
    """A package in two parts."""
    wheel = tmp_path / "model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("model/weights.gguf", b"\x00\x01" * 500)
    for k in ("1", "2"):
        (tmp_path / k).mkdir()
    carry.split(carry.squeezed(wheel), tmp_path, (50, None))
    return tmp_path


def test_parts_that_come_one_after_another_are_the_whole(carry, folders):
    site = folders / "site"
    assert not carry.unpack(folders / "1", site)
    assert carry.unpack(folders / "2", site) and carry.unpack(folders / "2", site)
    assert (site / "model" / "weights.gguf").read_bytes() == b"\x00\x01" * 500


def test_parts_that_are_not_the_whole_are_refused(carry, folders):
    part = folders / "2" / f"{carry.PARTS}.2"
    part.write_bytes(part.read_bytes()[:-1])
    carry.unpack(folders / "1", folders / "site")
    with pytest.raises(SystemExit, match="another SHA-256"):
        carry.unpack(folders / "2", folders / "site")
    assert not (folders / "site" / "model").exists()
    assert json.loads((folders / "2" / carry.LIST).read_text())["parts"] == 2
