"""Elementwise work of one step of a recurrence as one loop of machine code, if llvmlite is there.

A step of a small LSTM is a matrix product and a dozen operators on a few hundred numbers each, and
an operator of torch costs more than its work. Here they are one Python function of numbers, from
which LLVM makes a loop that reads and writes each of them once. It takes a tenth of a second, in
each process that needs it; nothing is kept on the disk.

>>> def double(x, y):
...     return None, x + x
>>> x, y = torch.ones(5, 2, 3), torch.zeros(5, 2, 3)  # (time, batch, hidden)
>>> at = step_of(double, x, y) or (lambda t: torch.add(x[t], x[t], out=y[t]))  # no llvmlite
>>> _ = at(4)
>>> y.sum(dim=(1, 2)).tolist()
[0.0, 0.0, 0.0, 0.0, 12.0]
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

Elementwise = Callable[..., Sequence[Any]]
FLAGS = ("contract",)  # a product and a sum may be one instruction; all else is as IEEE 754 has it
LN2_HIGH = 355 / 512
"""ln 2 in few bits: its product with a small integer is exact."""
LARGEST = 87.0
"""exp of it, and of its negative, is a normal float32."""
ROUNDING = 1.5 * 2**23
"""Added to a small float32, it leaves the nearest integer in the last bits."""
LOCK = threading.Lock()


def step_of(function: Elementwise, *tensors: Tensor) -> Callable[[int], object] | None:
    """``step(t)``, which changes row ``t`` of ``tensors`` as ``function`` says, in one loop; None
    where torch's operators have to do it: not all are float32 on the CPU without gaps in the last
    dimension, or llvmlite is absent.

    Tensors are (time, batch, hidden), or a few times as wide: then each part counts as one.
    ``function`` takes a :class:`Number` of each and returns what it becomes, None where it stays.
    What changes overlaps with nothing else at one time.
    """
    size = min(t.shape[2] for t in tensors)
    layout: list[int] = []
    for t in tensors:
        by_time, by_row, gap = t.stride()
        if t.dtype != torch.float32 or not t.is_cpu or gap != 1:
            return None
        first = t.data_ptr()
        for part in range(first, first + 4 * t.shape[2], 4 * size):
            layout += part, 4 * by_time, 4 * by_row
    with LOCK:
        call = _compiled(function, len(layout) // 3)
    if call is None:
        return None
    table = (ctypes.c_int64 * len(layout))(*layout)
    table.keeps = tensors  # type: ignore[attr-defined]
    return functools.partial(call, table, tensors[0].shape[1], size)


def software() -> dict[str, str]:
    """The package that compiles and its version, if it is there: for records of a run."""
    there = find_spec("llvmlite") is not None
    return {"llvmlite": importlib.metadata.version("llvmlite")} if there else {}


class Number:
    """A float32 of the function that is being compiled; the methods of tensors that it needs."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _by(self, operation: str, *others: Number | float) -> Number:
        values = [x.value if isinstance(x, Number) else self.value.type(x) for x in others]
        return Number(self.builder, getattr(self.builder, operation)(*values, flags=FLAGS))

    def __add__(self, other: Number | float) -> Number:
        return self._by("fadd", self, other)

    def __sub__(self, other: Number | float) -> Number:
        return self._by("fsub", self, other)

    def __rsub__(self, other: float) -> Number:
        return self._by("fsub", other, self)

    def __mul__(self, other: Number | float) -> Number:
        return self._by("fmul", self, other)

    def __truediv__(self, other: Number | float) -> Number:
        return self._by("fdiv", self, other)

    def __rtruediv__(self, other: float) -> Number:
        return self._by("fdiv", other, self)

    def sigmoid(self) -> Number:
        """1 / (1 + exp(-x))."""
        s, p = (0.0 - self)._exponential()
        return 1.0 / (s * p + s + 1.0)

    def tanh(self) -> Number:
        """(exp(2x) - 1) / (exp(2x) + 1)."""
        s, p = (self + self)._exponential()
        less_one = s * p + (s - 1.0)
        return less_one / (less_one + 2.0)

    def _exponential(self) -> tuple[Number, Number]:
        """``(s, p)``: exp is ``s + s p``, s a power of two, so that ``exp - 1 = s p + (s - 1)``
        keeps its digits where it is small."""
        x = self._clamped(LARGEST)
        rounded = x * math.log2(math.e) + ROUNDING
        k = rounded - ROUNDING
        r = x - k * LN2_HIGH - k * (math.log(2) - LN2_HIGH)  # |r| <= ln(2) / 2
        series = r * (1 / math.factorial(7)) + 1 / math.factorial(6)
        for n in (5, 4, 3, 2):
            series = series * r + 1 / math.factorial(n)
        return rounded._power_of_two(), r * r * series + r

    def _clamped(self, bound: float) -> Number:
        """In [-bound, bound]; what is no number stays so."""
        value = self.value
        for limit, beyond in ((value.type(bound), ">"), (value.type(-bound), "<")):
            is_beyond = self.builder.fcmp_ordered(beyond, value, limit)
            value = self.builder.select(is_beyond, limit, value)
        return Number(self.builder, value)

    def _power_of_two(self) -> Number:
        """2^k of ``self = ROUNDING + k``: k becomes the exponent."""
        from llvmlite import ir

        bits = self.builder.bitcast(self.value, ir.IntType(32))
        bits = self.builder.add(self.builder.shl(bits, bits.type(23)), bits.type(127 << 23))
        return Number(self.builder, self.builder.bitcast(bits, self.value.type))


# --------------------------------------------------------------------------- the loop
@functools.cache
def _compiled(function: Elementwise, count: int) -> Callable[..., object] | None:
    """``call(table, batch, size, t)``; the table has address and strides in bytes, by time and by
    row, of each of ``count`` operands."""
    if find_spec("llvmlite") is None:
        return None
    from llvmlite import ir

    module, long = ir.Module(), ir.IntType(64)
    row = _row(module, function, count)
    step, builder = _function(module, "step", [long.as_pointer(), long, long, long])
    table, batch, size, time = step.args
    with _loop(builder, batch) as b:
        pointers = []
        for k in range(count):
            place, by_time, by_row = (
                builder.load(builder.gep(table, [long(3 * k + i)])) for i in range(3)
            )
            place = builder.add(place, builder.mul(time, by_time))
            place = builder.add(place, builder.mul(b, by_row))
            pointers.append(builder.inttoptr(place, row.args[k].type))
        builder.call(row, [*pointers, size])
    builder.ret_void()
    engine = _engine(module)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)(
        engine.get_function_address("step")
    )
    call.keeps = engine  # type: ignore[attr-defined] # it owns the machine code
    return call


def _row(module: Any, function: Elementwise, count: int) -> Any:
    """``function`` of each column of one row."""
    from llvmlite import ir

    number = ir.FloatType()
    row, builder = _function(module, "row", [number.as_pointer()] * count + [ir.IntType(64)])
    *pointers, size = row.args
    row.linkage = "internal"
    for pointer in pointers:
        pointer.add_attribute("noalias")
    with _loop(builder, size) as column:
        places = [builder.gep(pointer, [column]) for pointer in pointers]
        before = [Number(builder, builder.load(place)) for place in places]
        for place, after in zip(places, function(*before), strict=True):
            if after is not None:
                builder.store(after.value, place)
    builder.ret_void()
    return row


def _function(module: Any, name: str, types: list[Any]) -> tuple[Any, Any]:
    """One without a result, and what builds it."""
    from llvmlite import ir

    function = ir.Function(module, ir.FunctionType(ir.VoidType(), types), name)
    return function, ir.IRBuilder(function.append_basic_block())


@contextlib.contextmanager
def _loop(builder: Any, times: Any) -> Iterator[Any]:
    """What is built inside is done for each integer below ``times``."""
    before, zero = builder.block, times.type(0)
    body, after = builder.append_basic_block(), builder.append_basic_block()
    builder.cbranch(builder.icmp_signed("<", zero, times), body, after)
    builder.position_at_end(body)
    i = builder.phi(times.type)
    i.add_incoming(zero, before)
    yield i
    following = builder.add(i, times.type(1))
    i.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, times), body, after)
    builder.position_at_end(after)


def _engine(module: Any) -> Any:
    """Machine code of a module, for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(llvm.get_host_cpu_name(), features, opt=3, jit=True)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(parsed, passes)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine
