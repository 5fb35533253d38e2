"""The kernel of a GPU makes the numbers of the operators, run here lane by lane."""

import importlib
import importlib.util
import inspect
import sys
import types

import numpy as np
import pytest
import torch

from crtlib.training import noise

CPU = torch.device("cpu")


class Lanes(np.ndarray):
    """What a variable of a kernel holds: a number for each lane, which no statement changes."""

    def __iadd__(self, other):
        return self + other

    def __ixor__(self, other):
        return self ^ other

    def to(self, kind, bitcast=False):
        return self.view(kind) if bitcast else self.astype(kind)


class Pointer:
    def __init__(self, place, offset=0):
        self.place, self.offset = place, offset

    def __add__(self, offset):
        return Pointer(self.place, self.offset + offset)


def interpreted():
    """As much of Triton as the kernel asks for, by NumPy, one program after the other."""
    programs = [0]

    def jit(function):
        class Kernel:
            __call__ = staticmethod(function)

            def __getitem__(self, grid):
                def launch(*given):
                    for programs[0] in range(grid[0]):
                        function(*map(held, given))

                return launch

        return Kernel()

    def held(given):
        return Pointer(given.numpy()) if isinstance(given, torch.Tensor) else given

    def store(pointer, value, mask):
        pointer.place[np.asarray(pointer.offset)[mask]] = value[mask]

    triton, tl = types.ModuleType("triton"), types.ModuleType("triton.language")
    triton.jit, triton.language = jit, tl
    tl.constexpr, tl.uint32, tl.int32, tl.float32 = int, np.uint32, np.int32, np.float32
    tl.program_id = lambda axis: programs[axis]
    tl.arange = lambda *ends: np.arange(*ends).view(Lanes)
    tl.zeros = lambda shape, kind: np.zeros(shape, kind).view(Lanes)
    tl.load = lambda pointer: pointer.place[pointer.offset]
    tl.store, tl.log, tl.sqrt, tl.cos, tl.sin = store, np.log, np.sqrt, np.cos, np.sin
    return {"triton": triton, "triton.language": tl}


@pytest.fixture
def kernel(monkeypatch):
    """The module: by Triton's own interpreter where it is installed."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if not importlib.util.find_spec("triton"):
        for name, module in interpreted().items():
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "crtlib.training.noise_kernel", raising=False)
    yield importlib.import_module("crtlib.training.noise_kernel")
    sys.modules.pop("crtlib.training.noise_kernel", None)


def same(kernel, key, count):
    theirs = noise.box_muller(noise.chacha20_words(key, count, CPU))
    return torch.allclose(
        kernel.triton_normals_from_key(key, count, CPU), theirs, rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("count", [1, 127, 128, 300, 2000])
def test_a_kernel_makes_the_numbers_of_the_operators(kernel, count):
    assert same(kernel, np.random.default_rng(count).bytes(32), count)


@pytest.mark.parametrize(
    ("honest", "wrong"),
    [
        ("counter = offsets.to(tl.uint32)", "counter = tl.arange(0, block).to(tl.uint32)"),
        ("range(10)", "range(9)"),
        ("count + offsets, half, inside, a1 + s1", "count + offsets, half, inside, a0 + s0"),
        ("tl.sin(turn)", "tl.cos(turn)"),
    ],
    ids=[
        "a counter that repeats",
        "eighteen rounds",
        "a row that stands twice",
        "two numbers of one angle",
    ],
)
def test_a_kernel_that_is_wrong_is_seen(kernel, honest, wrong, tmp_path, monkeypatch):
    source = inspect.getsource(kernel)
    assert source.count(honest) == 1
    (tmp_path / "wrong_kernel.py").write_text(source.replace(honest, wrong))
    monkeypatch.syspath_prepend(tmp_path)
    assert not same(importlib.import_module("wrong_kernel"), bytes(range(32)), 2000)
    sys.modules.pop("wrong_kernel")


@pytest.mark.parametrize("count", [0, 2**28 + 1])
def test_places_must_fit(kernel, count):
    with pytest.raises(ValueError, match=rf"count={count}: must be from 1 to 2\^28"):
        kernel.triton_normals_from_key(bytes(32), count, CPU)
