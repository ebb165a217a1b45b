"""Compute the modules of sentence-transformers between an encoder and its pooling, of the states of tokens.

Source: sentence-transformers 6. No module reads the states of padding: a text has the same vector in any batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from frameworks.core.errors import InvalidModel
from frameworks.text.config import TextConfig
from frameworks.text.sentence_modules.module_weights import checked_tensor, read_weights
from frameworks.text.sentence_modules.modules import Module
from frameworks.text.sentence_modules.vector_modules import LARGEST_VECTOR, activation_name
from frameworks.text.words.vocabulary import word_weights
from frameworks.types import Array

_MOST_KERNELS = 64
_LARGEST_KERNEL = 1023
_MOST_LAYERS = 1000
_MOST_LSTMS = 100


@dataclass(slots=True)
class TokenStates:
    """The states of the tokens of a batch, [texts, longest, size]. `mask`: 1 on tokens, int64 [texts, longest].

    `input_ids`: int64 [texts, longest]. `layers`: the states behind the embeddings and behind each layer; None where
    the encoder does not give them. `weight_sums`: [texts], of WordWeights.
    """

    states: torch.Tensor
    mask: torch.Tensor
    input_ids: torch.Tensor
    layers: Sequence[torch.Tensor] | None = None
    weight_sums: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Encoder:
    """`size`: of its states; 0 or less where only the modules state it. `num_layers`: of states that it gives; 0 where
    it gives the last ones only. `num_ids`: token ids that it reads.
    """

    size: int
    num_layers: int
    num_ids: int


_Step = Callable[[TokenStates], None]


class TokenModules:
    """The modules of a model before its pooling. `size`: of the states that they return."""

    def __init__(
        self,
        modules: Sequence[Module],
        encoder: Encoder,
        like: torch.Tensor,
        allow_pickled: bool = False,
    ) -> None:
        """`like`: of the dtype and device of the states. Raises InvalidModel."""
        self.size = encoder.size
        self.memory_bytes = 0
        self._num_layers = encoder.num_layers
        self._num_ids = encoder.num_ids
        self._like = like
        self._allow_pickled = allow_pickled
        self._steps: list[_Step] = [self._step(module) for module in modules]

    def __call__(self, states: TokenStates) -> TokenStates:
        """Change the states. Their size is then `size`."""
        for step in self._steps:
            step(states)
        return states

    def _step(self, module: Module) -> _Step:
        if module.kind == "Normalize":
            return _normalize
        if module.kind == "WordWeights":
            return self._weights(module)
        tensors = read_weights(module, self._allow_pickled)
        match module.kind:
            case "Dense":
                return self._dense(module, tensors)
            case "CNN":
                return self._convolutions(module, tensors)
            case "LSTM":
                return self._recurrence(module, tensors)
        assert module.kind == "WeightedLayerPooling", module.kind
        return self._layers(module, tensors)

    def _held(self, module: Module, tensors: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor of a module, of the dtype and on the device of the states."""
        tensor = torch.from_numpy(checked_tensor(module, tensors, name, shape)).to(self._like)
        self.memory_bytes += tensor.nbytes
        return tensor

    def _check_size(self, module: Module, *keys: str) -> int:
        """Return the size of the states before a module. `keys`: the names that versions have for it."""
        key = next((each for each in keys if each in module.config), keys[0])
        stated = module.count(key, LARGEST_VECTOR)
        if self.size > 0 and stated != self.size:
            raise InvalidModel(
                f"{module.config_file}: {key}: expected {self.size}, the size of the states before it, got {stated}; "
                "correct the file"
            )
        return stated

    def _dense(self, module: Module, tensors: Mapping[str, Array]) -> _Step:
        before, after = self._check_size(module, "in_features"), module.count("out_features", LARGEST_VECTOR)
        weight = self._held(module, tensors, "linear.weight", (after, before))
        has_bias, adds_input = module.config.get("bias") is not False, module.config.get("use_residual") is True
        bias = self._held(module, tensors, "linear.bias", (after,)) if has_bias else None
        is_projected = adds_input and after != before
        residual = self._held(module, tensors, "residual.weight", (after, before)) if is_projected else None
        activation = getattr(torch.nn, activation_name(module))()
        self.size = after

        def step(tokens: TokenStates) -> None:
            states = tokens.states
            result = activation(torch.nn.functional.linear(states, weight, bias))
            if adds_input:
                result = result + (states if residual is None else torch.nn.functional.linear(states, residual))
            tokens.states = result

        return step

    def _convolutions(self, module: Module, tensors: Mapping[str, Array]) -> _Step:
        before = self._check_size(module, "in_embedding_dimension", "in_word_embedding_dimension")
        sizes = _kernel_sizes(module)
        channels = module.count("out_channels", LARGEST_VECTOR // len(sizes), 256)
        weights = [
            (
                self._held(module, tensors, f"convs.{index}.weight", (channels, before, size)),
                self._held(module, tensors, f"convs.{index}.bias", (channels,)),
            )
            for index, size in enumerate(sizes)
        ]
        self.size = channels * len(sizes)

        def step(tokens: TokenStates) -> None:
            # Beyond the end of a text its neighbours are zeros, as where it is alone.
            states = (tokens.states * tokens.mask.unsqueeze(-1).to(tokens.states.dtype)).transpose(1, 2)
            parts = [
                torch.nn.functional.conv1d(states, weight, bias, padding=(weight.shape[2] - 1) // 2)
                for weight, bias in weights
            ]
            tokens.states = torch.cat(parts, dim=1).transpose(1, 2)

        return step

    def _recurrence(self, module: Module, tensors: Mapping[str, Array]) -> _Step:
        before = self._check_size(module, "embedding_dimension", "word_embedding_dimension")
        size, num_layers = module.count("hidden_dim", LARGEST_VECTOR // 2), module.count("num_layers", _MOST_LSTMS, 1)
        both_ways = module.config.get("bidirectional") is not False
        with torch.device("meta"):
            lstm = torch.nn.LSTM(before, size, num_layers, bidirectional=both_ways, batch_first=True)
        shapes = {name: tuple(weight.shape) for name, weight in lstm.named_parameters()}
        held = {name: self._held(module, tensors, f"encoder.{name}", shape) for name, shape in shapes.items()}
        lstm.load_state_dict(held, assign=True)
        lstm.eval().requires_grad_(False)
        self.size = 2 * size if both_ways else size

        def step(tokens: TokenStates) -> None:
            lengths, longest = tokens.mask.sum(dim=1).clamp(min=1).cpu(), tokens.states.shape[1]
            packed = torch.nn.utils.rnn.pack_padded_sequence(
                tokens.states, lengths, batch_first=True, enforce_sorted=False
            )
            states = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=longest)
            tokens.states = states[0]

        return step

    def _weights(self, module: Module) -> _Step:
        table = torch.from_numpy(word_weights(module)).to(self._like.device)
        self.memory_bytes += table.nbytes
        if len(table) < self._num_ids:
            raise InvalidModel(
                f"{module.config_file}: vocab: expected a word for each of {self._num_ids} tokens, got {len(table)}; "
                "correct the file"
            )

        def step(tokens: TokenStates) -> None:
            weights = table[tokens.input_ids] * tokens.mask
            tokens.states = tokens.states * weights.unsqueeze(-1).to(tokens.states.dtype)
            tokens.weight_sums = weights.sum(dim=1)

        return step

    def _layers(self, module: Module, tensors: Mapping[str, Array]) -> _Step:
        size, count = self.size, module.count("num_hidden_layers", _MOST_LAYERS, 12) + 1
        first = module.config.get("layer_start", 4)
        if not isinstance(first, int) or isinstance(first, bool) or not 0 <= first < count:
            raise InvalidModel(
                f"{module.config_file}: layer_start: expected 0 to {count - 1}, got {str(first)[:100]}; correct it"
            )
        weights = self._held(module, tensors, "layer_weights", (count - first,))
        if self._num_layers not in (0, count):
            raise InvalidModel(
                f"{module.config_file}: num_hidden_layers: expected {self._num_layers - 1}, those of the encoder, "
                f"got {count - 1}; correct it"
            )
        if size > 0:
            self._check_size(module, "embedding_dimension", "word_embedding_dimension")

        def step(tokens: TokenStates) -> None:
            # Without output_hidden_states sentence-transformers keeps the last states, too.
            if tokens.layers is not None:
                total = sum(weight * layer for weight, layer in zip(weights, tokens.layers[first:], strict=True))
                tokens.states = total / weights.sum()

        return step


def load_token_modules(
    model: torch.nn.Module, config: TextConfig, vocabulary_size: int, allow_pickled: bool
) -> TokenModules | None:
    """Read the modules between an encoder and its pooling; None where there are none.

    `vocabulary_size`: of the tokenizer. Raises InvalidModel.
    """
    if config.classifies or not config.token_modules:
        return None
    stated, num_layers = model.config, 0
    if getattr(stated, "output_hidden_states", False):
        num_layers = int(getattr(stated, "num_hidden_layers", -1)) + 1
    encoder = Encoder(int(getattr(stated, "hidden_size", -1)), num_layers, vocabulary_size)
    return TokenModules(config.token_modules, encoder, next(model.parameters()), allow_pickled)


def _normalize(tokens: TokenStates) -> None:
    tokens.states = torch.nn.functional.normalize(tokens.states, dim=-1)


def _kernel_sizes(module: Module) -> list[int]:
    """Return the sizes of the kernels. Raises InvalidModel for those that change the number of states."""
    sizes: list[int] = module.config.get("kernel_sizes", [1, 3, 5])
    is_known = isinstance(sizes, list) and 0 < len(sizes) <= _MOST_KERNELS
    if not is_known or not all(type(size) is int and 0 < size <= _LARGEST_KERNEL and size % 2 for size in sizes):
        raise InvalidModel(
            f"{module.config_file}: kernel_sizes: expected 1 to {_MOST_KERNELS} odd sizes up to {_LARGEST_KERNEL}, "
            f"got {str(sizes)[:100]}; others change the number of states and are not served"
        )
    strides = module.config.get("stride_sizes")
    if strides is not None and strides != [1] * len(sizes):
        raise InvalidModel(
            f"{module.config_file}: stride_sizes: expected 1 for each kernel, got {str(strides)[:100]}; "
            "others change the number of states and are not served"
        )
    return sizes
