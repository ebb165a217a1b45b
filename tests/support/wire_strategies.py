"""Generate values of every class that travels between the server and an engine process."""

from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from frameworks.core.channel.messages import ChannelMessage
from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.tenants import Tenant
from frameworks.engine.contract import EngineSettings
from frameworks.engine.process.wire import messages
from frameworks.engine.process.wire.messages import ErrorState
from frameworks.engine.process.wire.serialization import (
    SentAnswer,
    SentRequest,
    answer_to_plain,
    request_to_plain,
    tenant_to_plain,
)
from frameworks.generation.sequences import StepStats
from frameworks.generation.tools.formats import TextFormat
from frameworks.generation.types import (
    Constraint,
    Conversation,
    ForcedTokens,
    GenerateRequest,
    GenerationSpec,
    Message,
    MessageCall,
    MessageImage,
    Sampling,
    Stopping,
    TextDelta,
    TokenText,
    Usage,
    VisionSpec,
)
from frameworks.images.spec import ImageRequest, ImageSpec
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.text.tokens import (
    DetokenizeAnswer,
    DetokenizeRequest,
    SpansAnswer,
    SpansRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from frameworks.types import (
    NUMPY_DTYPES,
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    KernelTrial,
    MapType,
    ModelSpec,
    OptionalType,
    PairRequest,
    QuantizationReport,
    ScoreAnswer,
    SequenceSpec,
    SequenceType,
    TensorBatch,
    TensorType,
    TextRequest,
    TextSpec,
    TokenBatch,
    Value,
    ValueSpec,
    ValueType,
)

texts = st.text(max_size=8)
names = st.text(min_size=1, max_size=4)
counts = st.integers(0, 2**40)
token_ids = st.integers(0, 2**31)
reals = st.floats(allow_nan=False)
tenants = st.builds(Tenant, names, st.floats(0.01, 100.0), st.booleans())

_numeric = st.sampled_from([dtype for dtype in NUMPY_DTYPES.values() if dtype != np.dtype(object)])
_shapes = numpy_st.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """An array of any dtype: in C order, in Fortran order, or with gaps; a scalar, or empty."""
    shape = draw(_shapes)
    if draw(st.integers(0, 3)) == 0:
        array: Array = np.empty(shape, dtype=object)
        array.reshape(-1)[:] = draw(st.lists(texts, min_size=array.size, max_size=array.size))
        return array
    array = draw(numpy_st.arrays(draw(_numeric), shape))
    form = draw(st.sampled_from(["C", "F", "gaps", "reversed"]))
    if form == "gaps" and array.ndim:
        return array[..., ::2]
    if form == "reversed":
        return array[::-1] if array.ndim else array
    return np.asarray(array, order="F" if form == "F" else "C")


scalars = st.one_of(texts, st.integers(-(2**63), 2**63 - 1), st.floats())
values: st.SearchStrategy[Value] = st.one_of(
    arrays(),
    st.none(),
    st.lists(arrays(), max_size=3),
    st.lists(st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.floats(), max_size=3), max_size=3),
    st.dictionaries(texts, scalars, max_size=3),
    st.dictionaries(st.integers(-5, 5), arrays(), max_size=2),
)
tensors = st.dictionaries(texts, values, max_size=3)

calls = st.lists(st.builds(MessageCall, texts, texts, texts), max_size=2).map(tuple)
pictures = st.lists(st.builds(MessageImage, st.binary(max_size=8), counts, texts), max_size=2).map(tuple)
turns = st.lists(st.builds(Message, texts, texts, calls, texts, texts, texts, pictures), max_size=3).map(tuple)
conversations = st.builds(Conversation, turns, texts, st.none() | texts)
text_formats = st.builds(TextFormat, st.sampled_from([None, "hermes", "mistral"]), st.booleans())
prompts = st.one_of(texts, st.lists(token_ids, max_size=4).map(tuple), conversations)
samplings = st.builds(
    Sampling,
    repetition_penalty=reals,
    logit_bias=st.dictionaries(token_ids, reals, max_size=3),
    temperature=reals,
    top_k=st.none() | counts,
    seed=st.none() | st.integers(0, 2**64 - 1),
    top_logprobs=st.none() | counts,
    bad_words=st.lists(texts, max_size=2).map(tuple),
)
stoppings = st.builds(
    Stopping,
    max_tokens=st.none() | counts,
    strings=st.lists(texts, max_size=2).map(tuple),
    token_ids=st.frozensets(token_ids, max_size=3),
    ignore_eos=st.booleans(),
)
constraints = st.builds(Constraint, st.sampled_from(["json_object", "json_schema", "regex", "choice"]), texts)
_token_lists = st.lists(st.lists(token_ids, max_size=4), max_size=3)

requests: st.SearchStrategy[SentRequest] = st.one_of(
    st.builds(TensorBatch, tensors, st.none() | st.lists(texts, max_size=2).map(tuple)),
    st.builds(TokenBatch, _token_lists, st.none() | _token_lists),
    st.builds(
        TextRequest,
        st.lists(texts, max_size=3),
        normalize=st.none() | st.booleans(),
        truncate=st.sampled_from([True, False, "left", "right"]),
        top_k=st.none() | counts,
        dimensions=st.none() | counts,
        token_ids=st.none() | _token_lists,
        raw_scores=st.booleans(),
        prompt=st.none() | texts,
    ),
    st.builds(
        ImageRequest,
        st.lists(st.binary(max_size=8), max_size=3),
        normalize=st.none() | st.booleans(),
        top_k=st.none() | counts,
        dimensions=st.none() | counts,
        raw_scores=st.booleans(),
        output_names=st.none() | st.lists(texts, max_size=2).map(tuple),
    ),
    st.builds(PairRequest, st.lists(st.tuples(texts, texts), max_size=3), st.booleans(), st.booleans(), st.booleans()),
    st.builds(SpansRequest, st.lists(texts, max_size=3).map(tuple), st.booleans()),
    st.builds(TokenizeRequest, prompts, st.booleans(), st.booleans()),
    st.builds(DetokenizeRequest, st.lists(token_ids, max_size=4).map(tuple)),
    st.builds(
        GenerateRequest,
        st.lists(prompts, max_size=3).map(tuple),
        samplings,
        stoppings,
        st.none() | constraints,
        st.integers(1, 8),
        text_formats,
    ),
)

answers: st.SearchStrategy[SentAnswer] = st.one_of(
    tensors,
    st.builds(EmbedAnswer, numpy_st.arrays(np.float32, st.tuples(st.integers(0, 3), st.integers(0, 3))), counts),
    st.builds(ClassifyAnswer, st.lists(st.lists(st.tuples(texts, reals), max_size=3), max_size=3), counts),
    st.builds(
        SpansAnswer,
        st.lists(st.lists(token_ids, max_size=3), max_size=3),
        st.lists(st.lists(texts, max_size=3), max_size=3),
        st.lists(st.lists(st.none() | st.tuples(counts, counts), max_size=3), max_size=3),
    ),
    st.builds(ScoreAnswer, st.lists(reals, max_size=4), counts),
    st.builds(
        TokenizeAnswer,
        st.lists(token_ids, max_size=4),
        st.none() | st.lists(texts, max_size=4),
        st.none() | counts,
    ),
    st.builds(DetokenizeAnswer, texts),
)

_token_texts = st.builds(
    TokenText,
    token_ids,
    texts,
    st.none() | reals,
    st.lists(st.tuples(token_ids, texts, reals), max_size=2).map(tuple),
    rank=st.none() | counts,
    parts=st.lists(st.tuples(token_ids, st.binary(max_size=4)), max_size=2).map(tuple),
)
pieces = st.builds(
    TextDelta,
    counts,
    texts,
    st.sampled_from([None, "stop", "length"]),
    st.lists(_token_texts, max_size=2).map(tuple),
)
usages = st.builds(Usage, counts, counts, counts)
stats = st.builds(StepStats, *[counts] * 8)

_tensor_types = st.builds(
    TensorType, st.sampled_from(sorted(NUMPY_DTYPES)), st.none() | st.lists(st.integers(-1, 9), max_size=4).map(tuple)
)
value_types: st.SearchStrategy[ValueType] = st.recursive(
    _tensor_types,
    lambda inner: st.one_of(
        st.builds(SequenceType, inner),
        st.builds(MapType, st.sampled_from(["string", "int64"]), inner),
        st.builds(OptionalType, inner),
    ),
    max_leaves=4,
)
value_specs = st.builds(ValueSpec, names, value_types, st.booleans())
_reports = st.builds(
    QuantizationReport,
    *(texts, reals, reals, reals, counts, counts, reals, reals, texts, texts),
    st.lists(st.builds(KernelTrial, texts, texts, reals, st.dictionaries(texts, reals, max_size=2)), max_size=2).map(
        tuple
    ),
)
_sequences = st.builds(
    SequenceSpec,
    st.integers(0, 4),
    st.dictionaries(names, st.integers(-5, 5) | reals, max_size=2),
    st.none() | value_specs,
    st.dictionaries(names, st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=2),
    st.none() | texts,
)
_some_names = st.lists(names, max_size=3)
specs: st.SearchStrategy[ModelSpec] = st.builds(
    ModelSpec,
    framework=st.sampled_from(["onnx", "pytorch"]),
    task=st.sampled_from(["tensor", "embed", "classify", "generate"]),
    inputs=st.lists(value_specs, max_size=3).map(tuple),
    outputs=st.lists(value_specs, max_size=3).map(tuple),
    device=texts,
    dtype=texts,
    memory_bytes=counts,
    text=st.none()
    | st.builds(
        TextSpec,
        counts,
        st.booleans(),
        _some_names.map(tuple),
        st.booleans(),
        st.none() | counts,
        prompts=st.dictionaries(names, texts, max_size=2),
    ),
    image=st.none()
    | st.builds(
        ImageSpec,
        names,
        counts,
        counts,
        _some_names.map(tuple),
        st.booleans(),
        embedding_size=st.none() | counts,
        output_name=texts,
        pooling=st.sampled_from(["none", "cls"]),
        gives_probabilities=st.booleans(),
    ),
    providers=_some_names.map(tuple),
    batched_inputs=_some_names.map(frozenset),
    unbatched_because=st.none() | texts,
    unwarmed_because=st.none() | texts,
    learns_batching=st.booleans(),
    runs_by_shape=st.booleans(),
    sequence=st.none() | _sequences,
    quantization=st.none() | _reports,
    generation=st.none()
    | st.builds(
        GenerationSpec,
        counts,
        counts,
        st.frozensets(token_ids, max_size=3),
        sampling=samplings,
        forced_tokens=st.builds(ForcedTokens, last=st.tuples(token_ids)),
        vision=st.none() | st.builds(VisionSpec, counts, counts),
    ),
)

plain_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
"""Values as a peer with a fault may send them."""

_ids = st.integers(0, 2**63)
_plain_requests = requests.map(request_to_plain)
_plain_tenants = tenants.map(tenant_to_plain)
_seconds = st.floats(0, 1e6)
_errors = st.builds(ErrorState, names, texts, st.none() | texts, st.none() | texts, st.none() | _seconds)
_devices = st.builds(Device, st.sampled_from(["cuda", "mps", "cpu"]), counts, texts, counts, counts)
_limits = st.builds(BatchLimits, counts, st.none() | counts, _seconds)
_settings = st.builds(EngineSettings, texts, _limits, _seconds, st.booleans(), st.none() | _seconds)
_needs = st.builds(ModelNeeds, counts, counts, texts, st.lists(texts, max_size=2).map(tuple))
_sizes = st.dictionaries(counts, counts, max_size=3)
_batch_deltas = st.builds(
    messages.BatchDeltas,
    *(_sizes, _sizes, st.dictionaries(counts, _seconds, max_size=3), st.dictionaries(texts, _seconds, max_size=3)),
)
_step_deltas = st.builds(
    messages.StepDeltas, *[counts] * 7, _batch_deltas, st.dictionaries(texts, st.tuples(counts, counts), max_size=2)
)
_residents = st.builds(messages.VersionReport, texts, texts, texts, counts, _seconds)
message_fields: dict[type[ChannelMessage], tuple[st.SearchStrategy[Any], ...]] = {
    messages.Measure: (texts, st.binary(max_size=9), texts, st.binary(max_size=9)),
    messages.Load: (_devices, _settings),
    messages.Needs: (_needs,),
    messages.Infer: (_ids, _plain_requests, counts, _plain_tenants, _seconds, st.booleans()),
    messages.Generate: (
        _ids,
        _plain_requests,
        counts,
        _plain_tenants,
        _seconds,
        st.none() | _seconds,
        st.booleans(),
        st.booleans(),
    ),
    messages.Cancel: (_ids,),
    messages.Proceed: (_ids,),
    messages.Free: (st.lists(counts, max_size=3),),
    messages.Ping: (counts,),
    messages.Waiting: (counts,),
    messages.EndRequests: (),
    messages.Close: (),
    messages.Loaded: (specs.map(msgspec.to_builtins), counts, _seconds, _seconds),
    messages.LoadProgress: (st.text(max_size=9), counts, counts, st.text(max_size=9)),
    messages.LoadFailed: (_errors,),
    messages.Counted: (_ids, counts),
    messages.Begun: (st.lists(_ids, max_size=3), _seconds),
    messages.Answer: (_ids, answers.map(answer_to_plain), _seconds, _seconds, _seconds),
    messages.Failed: (_ids, _errors),
    messages.TextDeltas: (
        *(_ids, st.lists(pieces, max_size=3), usages, st.none() | _seconds, st.lists(_seconds, max_size=3), counts),
        st.booleans(),
    ),
    messages.Counts: (st.none() | _batch_deltas, st.none() | _step_deltas, st.none() | stats),
    messages.SpecLearned: (specs.map(msgspec.to_builtins),),
    messages.Pong: (counts, _seconds, _seconds),
    messages.QueueState: (_seconds, counts),
    messages.Leave: (),
    messages.ReplicaReport: (
        st.lists(_residents, max_size=2),
        counts,
        _seconds,
        st.dictionaries(texts, counts, max_size=2),
    ),
    messages.Closed: (),
}
"""Strategies for the fields of each message."""
sent_messages: st.SearchStrategy[messages.ToEngine | messages.FromEngine] = st.one_of(
    *(st.builds(kind, *parts) for kind, parts in message_fields.items())
)
