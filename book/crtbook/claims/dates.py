"""Since when a row is judged as it is: the functions that judge have dates, as rules have.

>>> from crtbook.claims import statistics
>>> with collect_judges() as judges:
...     statistics.holm_adjust([0.01, 0.04])
[0.02, 0.04]
>>> judges
{'statistics.holm_adjust'}

A function that helps to decide is marked :func:`dated`. While a row is judged, the names of those
that ran are collected, so no row can carry an earlier date than the code that judged it.
``rules.yml`` keeps the hash of each and the day since when it stands. The hash is of the program:
comments, docstrings, the form of the lines and the names of variables do not count. The words of a
rule do, so a date is sometimes later than it need be, never earlier.
"""

import ast
import contextlib
import contextvars
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

JUDGES: dict[str, Callable[..., object]] = {}
"""Every function that is :func:`dated`, by its module and name."""
_COLLECTED: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("judges", default=None)


def dated(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that helps to decide a verdict: its changes have dates, and the rows that it
    judged carry them."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    JUDGES[name] = function

    @functools.wraps(function)
    def noted(*args: P.args, **kwargs: P.kwargs) -> R:
        if (judges := _COLLECTED.get()) is not None:
            judges.add(name)
        return function(*args, **kwargs)

    return noted


@contextlib.contextmanager
def collect_judges() -> Iterator[set[str]]:
    """The names of the :func:`dated` functions that run inside."""
    judges = set[str]()
    token = _COLLECTED.set(judges)
    try:
        yield judges
    finally:
        _COLLECTED.reset(token)


def hash_program(*functions: Callable[..., object]) -> str:
    """A hash of what functions do: of their program without comments, docstrings and the names of
    variables. It is the same in every version of Python."""
    parts = []
    for function in functions:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
        assert isinstance(node, ast.FunctionDef), function
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        node.decorator_list = []
        _number_variables(node)
        parts.append(_describe_node(node))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _number_variables(function: ast.FunctionDef) -> None:
    """Replace each name of a variable, a parameter or an inner function by its number in the order
    of appearance; a keyword-only parameter keeps its name, which callers write."""
    named_by_callers = {argument.arg for argument in function.args.kwonlyargs}
    numbers: dict[str, str] = {}
    for node in ast.walk(function):
        name = ""
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.FunctionDef) and node is not function:
            name = node.name
        if name and name not in named_by_callers:
            numbers.setdefault(name, f"variable {len(numbers)}")
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            node.arg = numbers.get(node.arg, node.arg)
        elif isinstance(node, ast.Name):
            node.id = numbers.get(node.id, node.id)
        elif isinstance(node, ast.FunctionDef):
            node.name = numbers.get(node.name, node.name)


def _describe_node(node: object) -> str:
    """A syntax tree in words, without fields that are empty, as some versions of Python have
    more."""
    if isinstance(node, list):
        return f"[{', '.join(map(_describe_node, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(n, v) for n, v in ast.iter_fields(node) if v is not None and v != []]
    inside = ", ".join(f"{name}={_describe_node(value)}" for name, value in fields)
    return f"{type(node).__name__}({inside})"


def hash_calculation(module: ModuleType, name: str) -> str:
    """A hash of a function of ``module`` and of all functions there that it needs."""
    needed, waiting = dict[str, Callable[..., object]](), [name]
    while waiting:
        needed_name = waiting.pop()
        function = inspect.unwrap(getattr(module, needed_name))
        needed[needed_name] = function
        names = {n.id for n in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
                 if isinstance(n, ast.Name)}  # fmt: skip
        module_functions = {n for n, f in vars(module).items() if _is_function_of(module, f)}
        waiting += sorted((names & module_functions) - {*needed, *waiting})
    return hash_program(*(needed[n] for n in sorted(needed)))


def _is_function_of(module: ModuleType, value: object) -> bool:
    function = inspect.unwrap(value) if callable(value) else value
    return inspect.isfunction(function) and function.__module__ == module.__name__
