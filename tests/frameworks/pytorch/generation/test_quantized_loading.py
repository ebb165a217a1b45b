"""Generating models of 8 and 4 bits, and with a kernel by its name."""

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.core.progress import working
from frameworks.pytorch.generation.step.quantization_report import MAX_PERPLEXITY
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.support.models.causal_folders import save_causal_model
from tests.support.works import ended_phases

pytestmark = pytest.mark.isa


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_perplexity_is_near_original(made_once: FolderMaker, dtype: str) -> None:
    report = load_generating(made_once(save_causal_model), dtype=dtype, min_cosine=0.5).spec.quantization
    assert report is not None
    assert report.scheme.startswith(dtype)
    assert report.perplexity is not None
    assert report.perplexity != report.perplexity_original
    assert report.perplexity == pytest.approx(report.perplexity_original, rel=MAX_PERPLEXITY[dtype] - 1)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_quantization_counts_its_layers(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    ended = ended_phases(monkeypatch)
    with working("load", "m"):
        load_generating(made_once(save_causal_model, model_type=family), dtype="int8", min_cosine=0.5)
    [layers] = [each for each in ended if each.kind == "quantize"]
    assert (layers.name, layers.what, layers.unit) == ("m", "layers", "layers")
    assert layers.done == layers.total > 0
    assert [each.what for each in ended if each.kind == "load"] == ["checking the logits"]


def test_int4_holds_less_than_int8(made_once: FolderMaker) -> None:
    folder = made_once(save_causal_model)
    found = [load_generating(folder, dtype=each, min_cosine=0.5).spec.quantization for each in ("int8", "int4")]
    assert found[1].bytes_after < 0.9 * found[0].bytes_after


@pytest.mark.parametrize(("dtype", "name"), [("f32", "torch"), ("int8", "plain"), ("int4", "fbgemm")])
def test_kernel_of_other_dtype_is_refused(made_once: FolderMaker, dtype: str, name: str) -> None:
    with pytest.raises(InvalidModel) as caught:
        load_generating(made_once(save_causal_model), dtype=dtype, kernels=name)
    assert 'kernels: expected "auto" or a kernel of this dtype on this CPU' in caught.value.message
    assert f'got "{name}"; choose one of them' in caught.value.message


def test_forced_kernel_makes_every_layer(made_once: FolderMaker) -> None:
    model = load_generating(made_once(save_causal_model), kernels="plain")
    assert {each.kernel for each in model.spec.products} == {"plain"}
    assert sum(each.layers for each in model.spec.products) > 1
