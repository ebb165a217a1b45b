"""Tile registers of Intel's AMX in NumPy, called by compiled code in place of the instructions."""

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir

from tests.support.pair_products import add_pair_products

_REGISTERS, _ROWS, _ROW_BYTES = 8, 16, 64
_FULL_SIZE = bytes([1, *[0] * 15, *[_ROW_BYTES, 0] * _REGISTERS, *[0] * 16, *[_ROWS] * _REGISTERS, *[0] * 8])
_I8, _POINTER, _I64 = ctypes.c_int8, ctypes.c_void_p, ctypes.c_int64


class AmxTiles:
    """Eight registers of 16 rows of 64 bytes, of all threads together: for a GEMM on one thread."""

    def __init__(self) -> None:
        self.is_configured = False
        self.errors: list[str] = []
        self._registers = np.zeros((_REGISTERS, _ROWS, _ROW_BYTES), dtype=np.uint8)
        self._functions = {
            "llvm.x86.ldtilecfg": ctypes.CFUNCTYPE(None, _POINTER)(self._configure),
            "llvm.x86.tilerelease": ctypes.CFUNCTYPE(None)(self._release),
            "llvm.x86.tilezero": ctypes.CFUNCTYPE(None, _I8)(self._zero),
            "llvm.x86.tileloadd64": ctypes.CFUNCTYPE(None, _I8, _POINTER, _I64)(self._load),
            "llvm.x86.tileloaddt164": ctypes.CFUNCTYPE(None, _I8, _POINTER, _I64)(self._load),
            "llvm.x86.tilestored64": ctypes.CFUNCTYPE(None, _I8, _POINTER, _I64)(self._store),
            "llvm.x86.tdpbf16ps": ctypes.CFUNCTYPE(None, _I8, _I8, _I8)(self._add_products),
        }

    def function(self, builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
        """As `llvm_vectors.function`, of the functions here."""
        address = ctypes.cast(self._functions[name], ctypes.c_void_p).value
        kind = ir.FunctionType(result, arguments).as_pointer()
        return builder.inttoptr(ir.Constant(ir.IntType(64), address), kind)

    def _configure(self, configuration: int) -> None:
        if ctypes.string_at(configuration, len(_FULL_SIZE)) != _FULL_SIZE:
            self.errors.append("registers are not of full size")
        self.is_configured = True
        self._registers[:] = 0

    def _release(self) -> None:
        self.is_configured = False

    def _zero(self, register: int) -> None:
        self._registers[register] = 0

    def _load(self, register: int, address: int, stride: int) -> None:
        np.copyto(self._registers[register], self._rows_at(address, stride))

    def _store(self, register: int, address: int, stride: int) -> None:
        np.copyto(self._rows_at(address, stride), self._registers[register])

    def _rows_at(self, address: int, stride: int) -> Any:
        """Return the memory of all rows of a register, uint8 [rows, bytes]."""
        if not self.is_configured:
            self.errors.append("registers are used before they are configured")
        memory = (ctypes.c_uint8 * (stride * (_ROWS - 1) + _ROW_BYTES)).from_address(address)
        return np.ndarray((_ROWS, _ROW_BYTES), np.uint8, memoryview(memory), strides=(stride, 1))

    def _add_products(self, sums: int, rows: int, weights: int) -> None:
        own, *given = (self._registers[each] for each in (sums, rows, weights))
        bits = [each.view(np.uint16).reshape(_ROWS, -1, 2) for each in given]
        added = add_pair_products(own.view(np.float32), *bits)
        own.view(np.float32)[:] = added
