"""Devices: the host must not wait for a GPU, and a GPU needs much work at once.

>>> is_on_host(torch.ones(2)), send_to_device(torch.ones(2), torch.device("cpu")).device.type
(True, 'cpu')
"""

from __future__ import annotations

import torch
from torch import Tensor

HOST_DEVICE_TYPES = frozenset({"cpu"})
"""Types of device that are the host itself. Reading a number from any other means waiting for all
work queued before, so nothing that a step computes may be read while the step runs."""


def is_host(device: torch.device) -> bool:
    """Whether the device is the host itself."""
    return device.type in HOST_DEVICE_TYPES


def is_on_host(x: Tensor) -> bool:
    """Whether the tensor's numbers can be read without waiting."""
    return is_host(x.device)


def send_to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy ``x`` from the host to ``device``, without waiting until it is there."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def device_by_name(name: str) -> str:
    """The device with this name: ``auto`` is CUDA if torch finds it, else the CPU. Raises
    ``ValueError`` for a device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise ValueError(f"device={name!r}: must be auto or cpu; torch finds no other here")
    return name
