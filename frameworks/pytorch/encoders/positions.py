"""Find out by a trial how many positions of a text a model has embeddings for."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.scheduling.merging.text_padding import TRIAL_TEXTS
from frameworks.text.positions import position_trial_ids, usable_positions
from frameworks.text.tokenizer import TextTokenizer

_EMBEDDING = torch.ops.aten.embedding.default
_SELECT = torch.ops.aten.index_select.default
_INDEX = torch.ops.aten.index.Tensor


def find_usable_positions(model: torch.nn.Module, run: Callable[[], object], num_tokens: int) -> int | None:
    """Return the largest number of tokens of a text, by the tables that a run reads; None without one of positions.

    `run`: computes one text of `num_tokens` tokens without padding.
    """
    reads = _TableReads(_addresses(model), num_tokens)
    with reads:
        run()
    return usable_positions(reads.reads)


def usable_positions_of(model: torch.nn.Module, tokenizer: TextTokenizer) -> int | None:
    """Return the largest number of tokens that the model has positions for; None where nothing bounds it."""
    token_ids = position_trial_ids(tokenizer, TRIAL_TEXTS)
    if token_ids is None:
        return None
    input_ids = torch.tensor([token_ids], device=next(model.parameters()).device)

    def run() -> None:
        with torch.inference_mode():
            model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids))

    try:
        return find_usable_positions(model, run, input_ids.shape[1])
    except RUN_ERRORS:
        # The warm-up names the error.
        return None


class _TableReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note which rows of tables are read, one for each token."""

    def __init__(self, addresses: set[int], num_tokens: int) -> None:
        """`addresses`: of the tensors that may be tables."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._addresses = addresses
        self._num_tokens = num_tokens
        self.reads: list[tuple[int, list[int]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        indices = None
        if func is _EMBEDDING:
            indices = args[1]
        elif func is _SELECT and args[1] == 0:
            indices = args[2]
        elif func is _INDEX:
            indices = args[1][0]
        if indices is not None and args[0].data_ptr() in self._addresses:
            self._note(int(args[0].shape[0]), indices)
        return func(*args, **(kwargs or {}))

    def _note(self, num_rows: int, indices: torch.Tensor) -> None:
        if indices.numel() == self._num_tokens:
            self.reads.append((num_rows, indices.flatten().tolist()))


def _addresses(model: torch.nn.Module) -> set[int]:
    """Return the addresses of the tensors that the modules hold, also of those that are no parameters."""
    held = (
        value
        for module in model.modules()
        for values in (module._parameters, module._buffers, vars(module))
        for value in values.values()
    )
    # Packed weights are no tables, and have no address.
    return {each.data_ptr() for each in held if isinstance(each, torch.Tensor) and each.layout is torch.strided}
