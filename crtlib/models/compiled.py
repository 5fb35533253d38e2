"""All steps of a recurrence as one call of machine code, if llvmlite is there.

A step of a small LSTM is a matrix product and a dozen operators on a few hundred numbers each, and
an operator of torch costs more than its work. Here the operators are one Python function of
numbers, from which LLVM makes a loop that reads and writes each of them once. Around it goes the
loop over time, which calls the matrix product of torch's own library. Compiling takes a tenth of
a second, in each process that needs it; nothing is kept on the disk.

>>> def double(x, y):
...     return None, x + x
>>> x, y = torch.zeros(3, 1, 2), torch.ones(3, 1, 2)  # (time, batch, hidden)
>>> steps = steps_of(double, x, y, add=Product(into=x, of=y, matrix=torch.eye(2)))
>>> if steps is None:  # no llvmlite
...     y = 2 * (x + y)
... else:
...     _ = steps()
>>> y[:, 0, 0].tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crtlib import machine

Elementwise = Callable[..., Sequence[Any]]
FLAGS = ("contract",)  # a product and a sum may be one instruction; all else is as IEEE 754 has it
LN2_HIGH = 355 / 512
"""ln 2 in few bits: its product with a small integer is exact."""
LARGEST = 87.0
"""exp of it, and of its negative, is a normal float32."""
ROUNDING = 1.5 * 2**23
"""Added to a small float32, it leaves the nearest integer in the last bits."""
LOCK = threading.Lock()


@dataclass(frozen=True)
class Product:
    """``into[t] += of[t] @ matrix``: (time, batch, m), (time, batch, k), (k, m).

    With fewer steps than the recurrence has, its last ones add nothing.
    """

    into: Tensor
    of: Tensor
    matrix: Tensor


def steps_of(
    function: Elementwise, *tensors: Tensor, add: Product, backwards: bool = False
) -> Callable[[], object] | None:
    """``steps()``: at each time t, from the first or ``backwards``, the product is added, and then
    row t of ``tensors`` changes as ``function`` says. None where torch's operators have to do it:
    not all are float32 on the CPU without gaps in the last dimension, or llvmlite is absent.

    Tensors are (time, batch, hidden), or a few times as wide: then each part counts as one.
    ``function`` takes a :class:`Number` of each and returns what it becomes, None where it stays.
    What changes overlaps with nothing else at one time.
    """
    rows = (*tensors, add.into, add.of)
    ours = all(t.dtype == torch.float32 and t.is_cpu for t in (*rows, add.matrix))
    if not ours or any(t.stride(2) != 1 for t in rows) or 1 not in add.matrix.stride():
        return None
    size = min(t.shape[2] for t in tensors)
    layout: list[int] = []
    for t in tensors:
        by_time, by_row, _ = t.stride()
        first = t.data_ptr()
        for part in range(first, first + 4 * t.shape[2], 4 * size):
            layout += part, 4 * by_time, 4 * by_row
    with LOCK:
        call = _compiled(function, len(layout) // 3)
    if call is None:
        return None
    time, batch, _ = tensors[0].shape
    order = (time - 1, -1) if backwards else (0, 1)
    table = (ctypes.c_int64 * len(layout))(*layout)
    table.keeps = tensors  # type: ignore[attr-defined]
    return functools.partial(call, table, _arguments(add), batch, size, time, *order)


class Number:
    """A float32 of the function that is being compiled, or a vector of them; the methods of tensors
    that it needs."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _by(self, operation: str, *others: Number | float) -> Number:
        kind = self.value.type
        values = [x.value if isinstance(x, Number) else machine.constant(kind, x) for x in others]
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
    """``call(table, product, batch, size, times, first, by)``, for times first, first + by, ...;
    the table has address and strides in bytes, by time and by row, of each of ``count`` operands,
    ``product`` is of :func:`_arguments`."""
    if not machine.compiles():
        return None
    from llvmlite import ir

    module, long = ir.Module(), ir.IntType(64)
    row, product = _row(module, function, count), _product(module)
    pointer = long.as_pointer()
    steps, builder = machine.routine(module, "steps", [pointer, pointer, *[long] * 5])
    table, arguments, batch, size, times, first, by = steps.args

    def at(index: int) -> Any:
        return builder.load(builder.gep(table, [long(index)]))

    with machine.loop(builder, times) as k:
        time = builder.add(first, builder.mul(k, by))
        builder.call(product, [arguments, time])
        with machine.loop(builder, batch) as b:
            places = []
            for n in range(count):
                place = builder.add(at(3 * n), builder.mul(time, at(3 * n + 1)))
                place = builder.add(place, builder.mul(b, at(3 * n + 2)))
                places.append(builder.inttoptr(place, row.args[n].type))
            builder.call(row, [*places, size])
    builder.ret_void()
    engine = machine.engine(module)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 5)(
        engine.get_function_address("steps")
    )
    call.keeps = engine  # type: ignore[attr-defined] # it owns the machine code
    return call


@functools.cache
def _sgemm() -> int:
    """Address of the Fortran routine: torch's own if its library shows one, as it is the faster
    one and the one of its operators; else SciPy's."""
    folder = Path(torch.__file__).parent / "lib"
    for library in sorted(folder.glob("libtorch_cpu.*")):
        with contextlib.suppress(OSError, AttributeError):
            found = ctypes.cast(ctypes.CDLL(str(library)).sgemm_, ctypes.c_void_p).value
            if found:
                return found
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["sgemm"]
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, name(capsule)))


def _arguments(add: Product) -> Any:
    """The 13 addresses that ``sgemm`` takes at time 0, the strides in bytes by time of what is
    multiplied and of the sum, and the number of times.

    It counts by columns, where a matrix is the transpose of ours: ``into' += matrix' of'``.
    """
    k, m = add.matrix.shape
    batch = add.into.shape[1]
    transposed = add.matrix.stride(1) != 1
    steps = [max(add.matrix.stride()), add.of.stride(1), add.into.stride(1)]
    numbers = (ctypes.c_int32 * 6)(m, batch, k, *map(max, steps, (k if transposed else m, k, m)))
    n_m, n_batch, n_k, of_matrix, of_of, of_into = range(
        ctypes.addressof(numbers), ctypes.addressof(numbers) + 24, 4
    )
    letters, one = ctypes.create_string_buffer(b"TN" if transposed else b"NN"), ctypes.c_float(1)
    letter, scale = ctypes.addressof(letters), ctypes.addressof(one)
    arguments = (ctypes.c_int64 * 16)(
        *(letter, letter + 1, n_m, n_batch, n_k, scale, add.matrix.data_ptr(), of_matrix),
        *(add.of.data_ptr(), of_of, scale, add.into.data_ptr(), of_into),
        *(4 * add.of.stride(0), 4 * add.into.stride(0), len(add.into)),
    )
    arguments.keeps = add, numbers, letters, one  # type: ignore[attr-defined]
    return arguments


def _product(module: Any) -> Any:
    """``product(arguments, time)`` adds it, if there is one at that time."""
    from llvmlite import ir

    long, byte = ir.IntType(64), ir.IntType(8).as_pointer()
    product, builder = machine.routine(module, "product", [long.as_pointer(), long])
    arguments, time = product.args
    values = [builder.load(builder.gep(arguments, [long(i)])) for i in range(16)]
    *addresses, of_step, into_step, times = values
    for place, step in ((8, of_step), (11, into_step)):
        addresses[place] = builder.add(addresses[place], builder.mul(time, step))
    with builder.if_then(builder.icmp_signed("<", time, times)):
        routine = ir.FunctionType(ir.VoidType(), [byte] * 13).as_pointer()
        builder.call(
            builder.inttoptr(long(_sgemm()), routine),
            [builder.inttoptr(address, byte) for address in addresses],
        )
    builder.ret_void()
    return product


def _row(module: Any, function: Elementwise, count: int) -> Any:
    """``function`` of each column of one row."""
    from llvmlite import ir

    number = ir.FloatType()
    row, builder = machine.routine(module, "row", [number.as_pointer()] * count + [ir.IntType(64)])
    *pointers, size = row.args
    row.linkage = "internal"
    for pointer in pointers:
        pointer.add_attribute("noalias")
    with machine.loop(builder, size) as column:
        places = [builder.gep(pointer, [column]) for pointer in pointers]
        before = [Number(builder, builder.load(place)) for place in places]
        for place, after in zip(places, function(*before), strict=True):
            if after is not None:
                builder.store(after.value, place)
    builder.ret_void()
    return row
