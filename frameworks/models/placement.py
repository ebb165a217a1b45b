"""Where a model goes, by measured sizes: pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from frameworks.devices import Device, ModelNeeds

MemoryLedger = Callable[[Device], int]
"""Bytes on a device."""


class Place(NamedTuple):
    """`must_leave`: bytes that others have to give up there first."""

    device: Device
    must_leave: int


def place(
    candidates: Sequence[Device], needs: ModelNeeds, room: MemoryLedger, largest_room: MemoryLedger
) -> Place | None:
    """The device for a model; None where it fits on none of the candidates, whoever leaves.

    The accelerator with the most room that holds it as things are; else the one that has to give up least for it; the
    CPU, if it is among the candidates, only where no accelerator can ever hold it. `room`: what is free now;
    `largest_room`: what could be, if all who may leave did.
    """
    for kind in (True, False):
        devices = [device for device in candidates if (device.kind != "cpu") is kind]
        devices = [device for device in devices if needs.on(device) <= largest_room(device)]
        if devices:
            best = max(devices, key=lambda device: room(device) - needs.on(device))
            return Place(best, max(0, needs.on(best) - room(best)))
    return None
