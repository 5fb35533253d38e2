"""Seals that detect changes to a model, or its optimizers, by anything but a step.

>>> import torch
>>> model = torch.nn.Linear(2, 1)
>>> seal = WeightSeal.of(model, bits_of="learning")
>>> int(seal.count_changed())
0
>>> escapes_the_count_of_torch = model.weight.data.mul_(1.01)
>>> seal.refuse_visible_changes()
>>> int(seal.count_changed())
1
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from types import MappingProxyType, NoneType, SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

HOOKS_OF_ALL_MODULES = (
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip
HOOKS_OF_A_MODULE = (*HOOKS_OF_ALL_MODULES, "_state_dict_hooks", "_state_dict_pre_hooks")
"""Hooks that take part in a module's passes, and hooks that decide which tensors are saved."""
ATTRIBUTES_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"_non_persistent_buffers_set"}
"""What torch keeps in each module: its tensors, layers and hooks, which are sealed by themselves,
and its mode, which each step sets."""
ATTRIBUTES_OF_GENERATION = frozenset({"generation_config", "prepare_inputs_for_generation"})
"""Attributes on which no pass of a model depends: a script may set how a model generates."""
UNSEALED_ATTRIBUTES = ATTRIBUTES_OF_EVERY_MODULE | ATTRIBUTES_OF_GENERATION
PLAIN_TYPES = frozenset(
    (NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device)
)
HOOKS_OF_A_PARAMETER = "_backward_hooks", "_post_accumulate_grad_hooks"
PLACES = 1021
"""The number of places that a sum of bits tells apart: a prime, so that no row of a matrix is
mistaken for another one."""
_ABSENT = object()
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class WeightSeal:
    """The tensors of a model (:func:`_tensors_by_name`) as a step left them: which of them learn,
    how often torch has counted each as changed, and a sum of the bits of some, which also shows
    changes through ``.data``. The sums stay on the device, and nothing waits for them.

    A tensor that is saved with the model and does not learn is "frozen": no step changes it. One
    that is not saved, such as a table of positions, may be rebuilt during a step; it is compared
    from one step to the next, like those that are "learning".

    Guarantee:
        No tensor is added, replaced or changed between two steps, and no frozen one from the first
        step to the last. Test: ``tests/training/test_own_loop.py::
        test_a_tensor_that_is_no_weight_is_refused``.
    """

    model: nn.Module
    marks: Mapping[str, tuple[int, int, bool]]
    sums: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, model: nn.Module, *, bits_of: Literal["learning", "frozen"] | None = None
    ) -> WeightSeal:
        """Seal the model as it is now. ``bits_of`` selects the tensors whose bits are summed, which
        takes a pass over their memory."""
        tensors = _tensors_by_name(model)
        saved = model.state_dict(keep_vars=True).keys() if bits_of else ()
        return cls(
            model,
            {name: _mark_tensor(x) for name, x in tensors.items()},
            {
                name: sum_of_bits(x)
                for name, x in tensors.items()
                if bits_of is not None
                and (x.requires_grad or name not in saved) == (bits_of == "learning")
            },
        )

    def refuse_visible_changes(self) -> None:
        """Raise ValueError, naming the tensor, for changes that the host can see: a tensor that was
        added, removed, frozen, unfrozen, replaced or changed in place, or that has a gradient."""
        tensors_now = _tensors_by_name(self.model)
        if moved := sorted(self.marks.keys() ^ tensors_now.keys()):
            raise ValueError(f"model: {moved[0]!r} was added or removed between two steps")
        for name, p in tensors_now.items():
            mark = _mark_tensor(p)
            if mark[-1] != self.marks[name][-1]:
                raise ValueError(f"model: {name!r} was frozen or unfrozen between two steps")
            if p.is_leaf and p.grad is not None:
                raise ValueError(f"model: {name!r} has a gradient that no step made")
            if mark != self.marks[name]:
                raise ValueError(f"model: {name!r} was changed outside of a step")

    def count_changed(self) -> Tensor:
        """The number of tensors whose sum of bits has changed: a scalar on their device."""
        tensors_now = _tensors_by_name(self.model)
        changed = [sum_of_bits(tensors_now[name]) != sealed for name, sealed in self.sums.items()]
        return torch.stack(changed).sum() if changed else torch.zeros((), dtype=torch.int64)


@dataclass(frozen=True)
class ReadingSeal:
    """How a model read texts when it was tried (:mod:`crtlib.training.probe`), and what it saves:
    its modules, the values of their attributes and settings, and what is hooked to them. What is
    changed later may let the texts of a batch change what one of them adds, or let a text be saved,
    although no weight has changed.

    >>> model = torch.nn.Linear(2, 1)
    >>> model.is_causal = True
    >>> seal = ReadingSeal.of(model)
    >>> seal.refuse_changed_reading(model)
    >>> model.is_causal = False
    >>> seal.refuse_changed_reading(model)
    Traceback (most recent call last):
    ...
    ValueError: model: a Linear was given another 'is_causal' since it was tried
    >>> model.is_causal = True
    >>> _ = model.register_forward_hook(lambda layer, x, y: y - y.mean(0))
    >>> seal.refuse_changed_reading(model)
    Traceback (most recent call last):
    ...
    ValueError: model: a Linear was hooked, replaced or given another forward since it was tried
    """

    marks: Mapping[str, tuple[object, ...]]
    attributes: Mapping[str, Mapping[str, object]]
    """The attributes of each module that are no tensors, by name: plain values and settings by
    value, all else by what it is."""
    changing: frozenset[tuple[str, str]] = frozenset()
    """Attributes, by place and name, that the model itself changes as it reads."""
    kept_alive: Mapping[int, object] = field(default_factory=dict, repr=False)
    """Objects that are recognised by their ``id``, which no other may have while this one lives."""

    @classmethod
    def of(cls, model: nn.Module) -> ReadingSeal:
        """Seal the model as it is now."""
        hooks_of_torch = vars(nn.modules.module)
        marks: dict[str, tuple[object, ...]] = {
            "of all": tuple(
                tuple(hooks_of_torch[f"_global{kind}"].values()) for kind in HOOKS_OF_ALL_MODULES
            )
        }
        attributes: dict[str, dict[str, object]] = {}
        values = _ValueReader()
        for name, module in model.named_modules():
            hooks = (tuple(getattr(module, kind).values()) for kind in HOOKS_OF_A_MODULE)
            marks[f"module {name}"] = (module, type(module), type(module).forward, *hooks)
            attributes[f"module {name}"] = {
                attribute: value if type(value) in PLAIN_TYPES else values.read(value, attribute)
                for attribute, value in vars(module).items()
                if attribute not in UNSEALED_ATTRIBUTES and not isinstance(value, Tensor)
            }
        for name, p in model.named_parameters():
            hooks_by_kind = (getattr(p, kind, None) or {} for kind in HOOKS_OF_A_PARAMETER)
            marks[f"parameter {name}"] = tuple(tuple(hooks.values()) for hooks in hooks_by_kind)
        return cls(marks, attributes, kept_alive=values.kept_alive)

    def without_what_reading_changes(self, earlier_seal: ReadingSeal) -> ReadingSeal:
        """This seal without the attributes that are other ones than in ``earlier_seal``, when
        nothing but the model itself has run in between: what a library counts, or keeps for the
        next pass."""
        return replace(self, changing=frozenset(earlier_seal._changed_attributes(self)))

    def _changed_attributes(self, later_seal: ReadingSeal) -> Iterator[tuple[str, str]]:
        """The attributes, by place and name, that are other ones in ``later_seal``, gone or new."""
        for place in self.attributes.keys() & later_seal.attributes.keys():
            sealed, current = self.attributes[place], later_seal.attributes[place]
            if sealed != current:
                for name in sealed.keys() | current.keys():
                    if sealed.get(name, _ABSENT) != current.get(name, _ABSENT):
                        yield place, name

    def refuse_changed_reading(self, model: nn.Module) -> None:
        """Raise ValueError, naming the module, if something else would be called now, or if an
        attribute or a setting that was sealed has another value.

        Guarantee:
            Tests: ``tests/training/test_own_loop.py::test_a_hook_of_a_script_is_refused``,
            ``tests/training/test_own_loop.py::test_an_attribute_of_a_layer_is_as_it_was_tried``.
        """
        seal_now = ReadingSeal.of(model)
        called = "was hooked, replaced or given another forward"
        changes = [
            (place, called)
            for place in self.marks.keys() | seal_now.marks.keys()
            if self.marks.get(place) != seal_now.marks.get(place)
        ]
        changes += [
            (place, called if name == "forward" else f"was given another {name!r}")
            for place, name in set(self._changed_attributes(seal_now)) - self.changing
        ]
        for place, change in sorted(changes):
            name = place.removeprefix("module ").removeprefix("parameter ")
            described = repr(name) if name else f"a {type(model).__name__}"
            raise ValueError(f"model: {described} {change} since it was tried")


@dataclass
class _ValueReader:
    """Reads values so that they can be compared later; settings that modules share are read once.
    Values that can be changed in place are copied."""

    kept_alive: dict[int, object] = field(default_factory=dict)
    _settings: dict[int, object] = field(default_factory=dict)

    def read(self, value: Any, name: str = "") -> object:
        """What is compared of ``value``, which an object holds under this name."""
        if isinstance(value, Tensor) or name in ATTRIBUTES_OF_GENERATION:
            return None  # the bits of tensors are sealed by themselves
        kind = type(value)
        if kind in PLAIN_TYPES or callable(value):
            return value
        if isinstance(value, set | frozenset):
            return kind, frozenset(value)
        if isinstance(value, list | tuple):
            return kind, tuple(self.read(x) for x in value)
        if isinstance(value, dict | MappingProxyType):
            return kind, {key: self.read(x, str(key)) for key, x in value.items()}
        if name in ("config", "peft_config") or _holds_settings(value):
            if id(value) not in self._settings:
                self._settings[id(value)] = kind  # if it holds itself
                attributes = vars(value).items()
                self._settings[id(value)] = kind, {key: self.read(x, key) for key, x in attributes}
            return self._settings[id(value)]
        self.kept_alive[id(value)] = value
        return kind, id(value)


def _holds_settings(value: object) -> bool:
    """Whether an object is a bundle of values, such as the ``config`` of ``transformers``."""
    return hasattr(value, "__dict__") and (
        isinstance(value, SimpleNamespace)
        or is_dataclass(value)
        or type(value).__name__.endswith("Config")
    )


@dataclass(frozen=True)
class OptimizerSeal:
    """What optimizers have learned, and their settings, as a step left them. Changing a moment
    would move the weights in the next step; changing a learning rate would have no effect, because
    a step sets it.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = torch.optim.Adam([weight])
    >>> seal = OptimizerSeal.of([optimizer])
    >>> int(seal.count_changed())
    0
    >>> optimizer.param_groups[0]["lr"] = 1.0
    >>> seal.refuse_changed_settings()
    Traceback (most recent call last):
    ...
    ValueError: optimizer: its settings were changed; give a schedule as learning_rate_factor

    Guarantee:
        Test: ``tests/training/test_own_loop.py::
        test_what_an_optimizer_has_learned_is_changed_by_steps_alone``.
    """

    optimizers: Sequence[torch.optim.Optimizer]
    settings: str
    sums: Mapping[str, Tensor]

    @classmethod
    def of(cls, optimizers: Iterable[torch.optim.Optimizer]) -> OptimizerSeal:
        """Seal the optimizers as they are now."""
        all_optimizers = tuple(_with_inner_optimizers(optimizers))
        sums = {name: sum_of_bits(x) for name, x in _learned_tensors(all_optimizers).items()}
        return cls(all_optimizers, _describe_settings(all_optimizers), sums)

    def refuse_changed_settings(self) -> None:
        """Raise ValueError if a group of parameters has other settings."""
        if _describe_settings(self.optimizers) != self.settings:
            raise ValueError(
                "optimizer: its settings were changed; give a schedule as learning_rate_factor"
            )

    def count_changed(self) -> Tensor:
        """The number of learned tensors that are gone or new, or whose sum of bits has changed: a
        scalar."""
        tensors_now = _learned_tensors(self.optimizers)
        changed = torch.tensor(len(tensors_now.keys() ^ self.sums.keys()))
        for name in tensors_now.keys() & self.sums.keys():  # on the devices where they are
            changed = changed + (sum_of_bits(tensors_now[name]) != self.sums[name])
        return changed


def refuse_learned_state(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError for an optimizer that has learned something: its moments hold what an
    earlier training read, which neither the ledger nor the certificate of this one counts. A
    constant state, or a copy of the weights, counts as nothing learned.

    Guarantee:
        Test: ``tests/training/test_own_loop.py::test_an_optimizer_begins_with_nothing_learned``.
    """
    states = (inner.state for inner in _with_inner_optimizers([optimizer]))
    for p, values in itertools.chain.from_iterable(state.items() for state in states):
        for name, x in _tensors_in(values):
            flat = x.detach().reshape(-1)
            has_stepped = name == "step" and bool(flat.any())
            is_constant = not len(flat) or bool((flat == flat[0]).all())
            is_copy = (
                isinstance(p, Tensor)
                and x.shape == p.shape
                and torch.equal(x.to(p.device, p.dtype), p.detach())
            )
            if has_stepped or not (is_constant or is_copy):
                raise ValueError(
                    f"optimizer: a {type(optimizer).__name__} already holds a learned {name!r}, "
                    "must begin with no state from another training"
                )


def _with_inner_optimizers(
    optimizers: Iterable[torch.optim.Optimizer],
) -> list[torch.optim.Optimizer]:
    """Each optimizer once, with those that another holds as an attribute, as Lookahead does."""
    by_id: dict[int, torch.optim.Optimizer] = {}
    waiting = list(optimizers)
    while waiting:
        optimizer = waiting.pop()
        if id(optimizer) not in by_id:
            by_id[id(optimizer)] = optimizer
            waiting += [x for x in vars(optimizer).values() if isinstance(x, torch.optim.Optimizer)]
    return list(by_id.values())


@dataclass(frozen=True)
class SettingsSeal:
    """The settings of a model that are released with it: the ``config`` of ``transformers`` in each
    module that has one, and those of its adapters. A script could write anything there.

    >>> from types import SimpleNamespace
    >>> model = torch.nn.Linear(2, 1)
    >>> model.config = SimpleNamespace(layers=2)
    >>> seal = SettingsSeal.of(model)
    >>> model.config.layers, model.config.note = 3, "a message"
    >>> seal.restore()
    >>> model.config
    namespace(layers=2)
    """

    settings: tuple[tuple[nn.Module, str, Any, dict[str, Any]], ...]

    @classmethod
    def of(cls, model: nn.Module) -> SettingsSeal:
        """Seal the settings that the model has now."""
        sealed: list[tuple[nn.Module, str, Any, dict[str, Any]]] = []
        for module in model.modules():
            for name in ("config", "peft_config"):
                settings = vars(module).get(name)
                if isinstance(settings, dict):
                    sealed.append((module, name, settings, copy.deepcopy(settings)))
                elif hasattr(settings, "__dict__"):
                    sealed.append((module, name, settings, copy.deepcopy(vars(settings))))
        return cls(tuple(sealed))

    def restore(self) -> None:
        """Restore these settings, whatever has been done to them."""
        for module, name, settings, values in self.settings:
            setattr(module, name, settings)
            current = settings if isinstance(settings, dict) else vars(settings)
            current.clear()
            current.update(copy.deepcopy(values))


def _tensors_by_name(model: nn.Module) -> dict[str, Tensor]:
    """All tensors that a model may use: its parameters and buffers, each once by the first of its
    names, and those that a module holds as plain attributes."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors |= dict(model.named_buffers())
    for module_name, module in model.named_modules():
        for name, value in _plain_tensors(module):
            tensors.setdefault(f"{module_name}.{name}".lstrip("."), value)
    return tensors


def _plain_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of a module that are neither parameters nor buffers: attributes, and items of
    lists and dicts among the attributes, however deep. What is registered is in dicts whose names
    begin with an underscore, which are skipped."""
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, list | tuple | dict) and not name.startswith("_"):
            yield from _tensors_inside(value, name)


def _tensors_inside(container: list[Any] | tuple[Any, ...] | dict[Any, Any], name: str) -> Iterator[
    tuple[str, Tensor]
]:  # fmt: skip
    """The tensors inside of a list or dict with this name."""
    for key, x in container.items() if isinstance(container, dict) else enumerate(container):
        if isinstance(x, Tensor):
            yield f"{name}.{key}", x
        elif isinstance(x, list | tuple | dict):
            yield from _tensors_inside(x, f"{name}.{key}")


def _learned_tensors(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The tensors that optimizers have learned, by the number of the optimizer, the place of the
    parameter, and the tensor's name."""
    return {
        f"{number}.{position}.{name}": x
        for number, optimizer in enumerate(optimizers)
        for position, values in enumerate(optimizer.state.values())
        for name, x in _tensors_in(values)
    }


def _tensors_in(values: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one parameter's state, by name."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Tensor):
            yield str(name), value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(name), torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, list | tuple | dict):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"{name}.{key}", x) for key, x in items if isinstance(x, Tensor))


def _describe_settings(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """The settings of all groups of parameters, and how many parameters each has."""
    return str([
        [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
        for optimizer in optimizers
    ])  # fmt: skip


def _mark_tensor(x: Tensor) -> tuple[int, int, bool]:
    """Which tensor ``x`` is, how often torch has counted it as changed, and whether it learns. If
    it is no parameter only its bits are compared, because ``to`` may put an equal one in its
    place."""
    identity = (id(x), x._version) if isinstance(x, nn.Parameter) else (0, 0)
    return *identity, x.requires_grad


def sums_of_saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The sum of bits of each tensor that is saved: weights, and buffers such as averages."""
    return {name: sum_of_bits(x) for name, x in model.state_dict(keep_vars=True).items()}


def sum_of_bits(x: Tensor) -> Tensor:
    """A number that changes, up to coincidence, if a bit of ``x`` changes, or if two numbers swap
    places that are not a multiple of ``PLACES`` apart."""
    flat = x.detach().contiguous().view(-1)
    numbers = flat.view(_INTEGER_OF_SIZE.get(flat.element_size(), torch.int64))
    whole_length = len(numbers) - len(numbers) % PLACES
    sums = numbers[:whole_length].view(-1, PLACES).sum(0, dtype=torch.int64)
    sums[: len(numbers) - whole_length] += numbers[whole_length:]
    return (sums * torch.arange(1, PLACES + 1, device=x.device)).sum()
