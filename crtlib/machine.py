"""Machine code from LLVM, if llvmlite is there (the extra ``compiled``).

>>> import ctypes
>>> if compiles():
...     from llvmlite import ir
...     module = ir.Module()
...     made, builder = routine(module, "nothing", [])
...     _ = builder.ret_void()
...     code = engine(module)  # it owns the code, so it must live as long
...     ctypes.CFUNCTYPE(None)(code.get_function_address("nothing"))()
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any


def compiles() -> bool:
    """Whether llvmlite is there."""
    return find_spec("llvmlite") is not None


def software() -> dict[str, str]:
    """The package that compiles and its version, if it is there: for records of a run."""
    return {"llvmlite": importlib.metadata.version("llvmlite")} if compiles() else {}


def constant(kind: Any, x: float) -> Any:
    """``x`` of a type, in every lane of a vector's."""
    return kind([x] * kind.count) if hasattr(kind, "count") else kind(x)


def routine(module: Any, name: str, types: list[Any]) -> tuple[Any, Any]:
    """One without a result, and what builds it."""
    from llvmlite import ir

    made = ir.Function(module, ir.FunctionType(ir.VoidType(), types), name)
    return made, ir.IRBuilder(made.append_basic_block())


@contextlib.contextmanager
def loop(builder: Any, times: Any) -> Iterator[Any]:
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


def engine(module: Any) -> Any:
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
    made = llvm.create_mcjit_compiler(parsed, machine)
    made.finalize_object()
    return made
