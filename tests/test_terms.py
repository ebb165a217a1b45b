"""Hold finished folders to the terms of docs/glossary.md: asked for where they belong, private words nowhere.

A folder joins `FINISHED` when its names and docstrings have the terms. `test_language` bans phrases everywhere.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_language import ROOT, _comments, _strings, checked_files

FINISHED = (
    *("app/admin", "app/auth", "app/cli", "app/embedded", "app/grpc", "app/server", "app/web", "app/workers"),
    *("extensions/clients", "extensions/load_test", "extensions/offline", "extensions/search"),
    *("frameworks/core", "frameworks/generation", "frameworks/manager.py", "frameworks/models", "frameworks/onnx"),
    *("frameworks/pytorch", "frameworks/quantization", "frameworks/runtime.py", "frameworks/text"),
    *("frameworks/scheduling/batch", "frameworks/scheduling/speculation", "frameworks/scheduling/steps"),
    *("frameworks/types.py", "memory", "frameworks/engine/process", "frameworks/engine/contract.py"),
    *("frameworks/engine/generating/service.py", "frameworks/engine/group.py", "frameworks/engine/group_queue.py"),
    *("frameworks/engine/local.py", "frameworks/engine/generating/stream.py", "frameworks/engine/texts.py"),
    "frameworks/engine/threads.py",
)

ASKED = {
    "app/auth": "key|tenant|digest|token bucket",
    "app/grpc": "gRPC|call|message|stream",
    "app/workers": "worker|supervisor",
    "extensions/clients": "API|route|codec|request|response|token",
    "extensions/search/collections/index": "k-means|inverted list|index|recall",
    "extensions/search/collections/scan": "GEMM|top-k|matmul",
    "frameworks/core/channel": "channel|message|descriptor",
    "frameworks/engine/process": "engine|process",
    "frameworks/models/replicas": "worker|supervisor",
    "frameworks/models/residency": "version|model|memory",
    "frameworks/models/versions": "version|model",
    "frameworks/onnx": "graph|ONNX",
    "frameworks/quantization": "quantized|saturate",
    "frameworks/scheduling/batch": "batch|queue|tenant",
    "frameworks/text/gguf": "GGUF",
    "frameworks/text/pooling.py": "pooling|embedding",
    "frameworks/text/tokenizer.py": "token",
    "memory": "memory|bytes|buffer",
    "frameworks/pytorch/compiled/amx": "GEMM|AMX",
    "frameworks/pytorch/compiled/attention": "softmax|KV cache",
    "frameworks/pytorch/compiled/decoder_step": "GEMM|KV cache|RMSNorm|block table",
    "frameworks/pytorch/compiled/dtypes": "GEMM",
    "frameworks/pytorch/compiled/matmul": "GEMM|activation|scale|packed",
    "frameworks/pytorch/compiled/matmul/epilogue.py": "epilogue",
    "frameworks/pytorch/compiled/matmul/lora.py": "LoRA",
    "frameworks/pytorch/compiled/matmul/quantized_activations.py": "quantized",
    "frameworks/pytorch/compiled/simd": "lane|vector|dtype",
    "frameworks/pytorch/encoders": "token|embedding|logits|tensor",
    "frameworks/pytorch/generation/decoders": "KV cache|attention|logits|LoRA|adapter",
    "frameworks/pytorch/generation/decoders/adapters": "LoRA|adapter",
    "frameworks/pytorch/generation/decoders/attention.py": "softmax",
    "frameworks/pytorch/generation/decoders/kv_cache.py": "KV cache",
    "frameworks/pytorch/generation/decoders/prefill_attention.py": "prefill",
    "frameworks/pytorch/generation/sampling": "logits|sampling|softmax|mask|argmax|grammar",
    "frameworks/pytorch/generation/sampling/masking.py": "grammar mask",
    "frameworks/pytorch/generation/sampling/multinomial.py": "softmax",
    "frameworks/pytorch/generation/sampling/rejection.py": "draft token",
    "frameworks/pytorch/generation/sampling/top_k.py": "argmax",
    "frameworks/pytorch/generation/speculation": "draft|propose",
    "frameworks/pytorch/generation/step": "decoder|logits|kernel|step|KV cache",
    "frameworks/pytorch/generation/weights": "matmul|quantize|weights",
    "frameworks/pytorch/generation/weights/group_weights.py": "quantize",
    "frameworks/pytorch/generation/weights/linear.py": "matmul",
    "frameworks/pytorch/generation/weights/packed/integers.py": "int4",
    "frameworks/pytorch/int8_choice.py": "matmul",
    "frameworks/pytorch/int8_matmul.py": "quantize",
    "frameworks/pytorch/kernels.py": "matmul",
    "frameworks/pytorch/quantize.py": "quantized",
    "frameworks/scheduling/speculation": "propose|speculat",
    "frameworks/scheduling/steps": "step|block|decode|sequence|token",
    "frameworks/scheduling/steps/blocks.py": "KV cache",
    "frameworks/scheduling/steps/scheduler.py": "preempt",
    "frameworks/scheduling/steps/step_cost.py": "prefill|decode",
}
"""Folder or file -> the terms of which the docstrings and comments of each module have at least one."""

REPLACED = {
    r"(?:numbers?|one|ones) that (?:is|are) (?:none|not finite)|is none either": "NaN, or not finite",
    r"(?<!expected )whole numbers?": "integers, or quantized values",
    r"(?:its|their|own) largest numbers?": "absolute maximum",
    r"numbers from 0 to \d+|(?:8|16|32|4) bit numbers": "integers, or the dtype",
    r"as numbers|plain numbers|keep(?:s)? (?:its|their) numbers": "floats, or dequantized",
    r"key/value (?:cache|blocks?)": "KV cache",
    r"widen(?:s|ed|ing)? (?:all )?weights|weights (?:that )?are widened": "dequantize",
    r"shares? of (?:a |some )?(?:keys?|blocks?)": "softmax weights",
    r"round(?:s|ed)? (?:the |each )?rows?": "quantized activations",
    r"narrow numbers?|numbers of (?:8|16|32) bits": "the dtype",
    r"matrix tiles?": "AMX",
    r"(?<!dot )products? of (?:\w+ )?(?:weights|rows|matrices)": "GEMM or matmul",
    r"products of (?:these|packed|int[48]|quantized) weights": "matmul",
    r"quantis(?:e|ed|es|ing|ation)": "quantize",
    r"(?:has|have|find|finds|is|there is) (?:no )?room|room for": "fits, or a scratch buffer",
    r"put in order|rows in order": "packed",
    r"places? in the queue": "queue slot",
    r"turns? of the (?:event )?loop": "iteration of the event loop",
    r"pays for": "is charged for",
    r"so many tokens are those": "a prefix whose tokens no further text changes",
    r"run(?:s|ning)? beside": "concurrently",
    r"(?:client|reader|caller|peer) is gone": "disconnected",
    r"numbers? of (?:a |the |each )?(?:vectors?|embeddings?)": "values",
    r"(?:free|taken|last|more) places?": "slot, or the limit",
    r"(?:rows|places) of (?:a |the )?text": "tokens, or positions",
}
"""Private words of the old style -> the field's term."""

REPLACED_NAMES = frozenset({"dots", "numbers", "place", "places", "room", "shares"})

MIN_DOCUMENTED = 0.9

_COMPILED = frozenset({"compiled", "strict_math", "inlined", "inlined_early", "llvm_function"})
_ARRAY = re.compile(r"\b(?:Tensor|ndarray|NDArray|Floats|Integers|Bytes|Vectors|Positions|Mask)\b")
_SHAPE_OR_DTYPE = re.compile(r"\[[^\]]+\]|\bb?float(?:16|32|64)\b|\bu?int(?:4|8|16|32|64)\b|\bdtypes?\b|\b16-bit\b")


def modules(*paths: str) -> list[Path]:
    """List the Python files below the paths."""
    return [file for file in checked_files(*paths) if file.suffix == ".py"]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments, docstrings and other strings of a module with their lines."""
    yield from _comments(source)
    yield from _strings(list(ast.walk(ast.parse(source))), is_test=False)


def private_words(source: str) -> list[str]:
    """Return one line for each private word in the texts and names of a module, with the term to write."""
    found = [
        f"{line}: {match[0]!r}; write {term}"
        for line, text in texts(source)
        for pattern, term in REPLACED.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE)
    ]
    nodes = list(ast.walk(ast.parse(source)))
    names = [(node.lineno, node.id) for node in nodes if isinstance(node, ast.Name)]
    names += [(node.lineno, node.arg) for node in nodes if isinstance(node, ast.arg)]
    return found + [f"{line}: the name {name}" for line, name in names if name in REPLACED_NAMES]


def array_functions(source: str) -> dict[str, bool]:
    """Return the public functions on arrays, and whether their docstrings give a shape or a dtype.

    Functions for compiled code take addresses: those with two parameters or more count.
    """
    tree = ast.parse(source)
    bodies: list[ast.Module | ast.ClassDef] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    return {
        function.name: bool(_SHAPE_OR_DTYPE.search(ast.get_docstring(function) or ""))
        for body in bodies
        for function in body.body
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("_") and _has_arrays(function)
    }


def _has_arrays(function: ast.FunctionDef) -> bool:
    parameters = [each for each in (*function.args.args, *function.args.kwonlyargs) if each.arg != "_context"]
    if any(ast.unparse(each) in _COMPILED for each in function.decorator_list):
        return len(parameters) > 1
    annotations = [*(each.annotation for each in parameters), function.returns]
    return any(_ARRAY.search(ast.unparse(each)) for each in annotations if each is not None)


@pytest.mark.parametrize("path", FINISHED)
def test_private_words_are_replaced(path: str) -> None:
    found = {str(file.relative_to(ROOT)): private_words(file.read_text(encoding="utf-8")) for file in modules(path)}
    assert not any(found.values()), "\n".join(f"{name}:{each}" for name, lines in found.items() for each in lines)


@pytest.mark.parametrize("path", ASKED)
def test_modules_have_terms_of_their_field(path: str) -> None:
    found = modules(path)
    assert found
    lacking = [
        str(file.relative_to(ROOT))
        for file in found
        if not re.search(ASKED[path], " ".join(text for _, text in texts(file.read_text(encoding="utf-8"))))
    ]
    assert not lacking, f"expected one of the terms {ASKED[path]}"


def test_asked_terms_stand_in_glossary() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").lower()
    terms = {term for each in ASKED.values() for term in each.split("|")}
    assert [term for term in sorted(terms) if term.removesuffix("d").lower() not in glossary] == []


def test_array_functions_give_shape_or_dtype() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {name}": is_documented
        for file in modules(*FINISHED)
        for name, is_documented in array_functions(file.read_text(encoding="utf-8")).items()
    }
    lacking = [name for name, is_documented in found.items() if not is_documented]
    assert len(lacking) <= (1 - MIN_DOCUMENTED) * len(found), "\n".join(lacking)


def test_private_word_is_found() -> None:
    source = '"""Rows of whole numbers, each by its largest number."""\nplace = 0  # a number that is none\n'
    assert private_words(source) == [
        "2: 'number that is none'; write NaN, or not finite",
        "1: 'whole numbers'; write integers, or quantized values",
        "1: 'its largest number'; write absolute maximum",
        "2: the name place",
    ]
    assert not private_words('"""int8 activations, quantized by their absolute maximum."""\naddress = 0  # NaN\n')


def test_undocumented_array_function_is_found() -> None:
    source = '''
def pack(weight: Floats) -> Bytes:
    """Return packed weights."""
@compiled
def copy(source: int, target: int) -> None:
    """Copy float32 elements."""
@compiled
def wait(arguments: Any) -> None:
    """Wait."""
def lanes() -> int:
    """Return the lanes."""
'''
    assert array_functions(source) == {"pack": False, "copy": True}
