"""Images of prompts in the steps: one begins in each, cached blocks are those of the same image, none is divided."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.tenants import Tenant
from frameworks.generation.media import ImageGroup, PromptMedia
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence, StepPlan
from tests.frameworks.scheduling.steps.block_memory import BlockMemory
from tests.frameworks.scheduling.steps.stepping import BLOCK, add, run_out, scheduler_of, step

TOKEN = 7
"""The token of all images."""


def prompt_of(*parts: int | tuple[int, int], is_whole: bool = False, sees_ahead: bool = False) -> tuple[int, PromptMedia]:
    """Return the length of a prompt and its images. A part is a number of text tokens, or (key, tokens) of an image."""
    end, groups, blocks = 0, [], []
    for part in parts:
        if isinstance(part, int):
            end += part
            continue
        key, length = part
        span = (end, end + length)
        end += length
        groups.append(ImageGroup(key, {}, (span,)))
        blocks.append(span)
    media = PromptMedia(end, tuple(groups), {}, is_whole=is_whole, blocks=tuple(blocks) if sees_ahead else ())
    return end, media


def add_images(
    scheduler: StepScheduler, sequence_id: int, length: int, media: PromptMedia, tenant: Tenant | None = None
) -> Sequence:
    """Add a sequence whose tokens are the same in each prompt."""
    prompt = list(range(length))
    for group in media.groups:
        for first, end in group.spans:
            prompt[first:end] = [TOKEN] * (end - first)
    options = {} if tenant is None else {"tenant": tenant}
    return add(scheduler, sequence_id, tuple(prompt), 4, media=media, **options)


def begun(plan: StepPlan) -> int:
    """Number of images that begin in a step."""
    found = 0
    for part in plan.parts:
        media = part.sequence.request.media
        if media is not None:
            stop = part.start + part.num_tokens
            found += sum(part.start <= group.first < stop for group in media.groups)
    return found


def test_one_image_begins_in_each_step() -> None:
    scheduler = scheduler_of()
    text = add(scheduler, 0, 3, 30)
    step(scheduler)
    for number in range(1, 4):
        add_images(scheduler, number, *prompt_of(2, (-number - 1, 6), 3, (-number - 10, 6), 2))
    counts: list[int] = []
    while sum(counts) < 6:
        plan = step(scheduler)
        assert text in [part.sequence for part in plan.parts], "the running text continues"
        counts.append(begun(plan))
    assert max(counts) == 1
    assert len(counts) == 6, "an image begins in each step"


def test_blocks_of_other_image_are_not_cached() -> None:
    scheduler = scheduler_of()
    length, media = prompt_of(2, (-5, 3 * BLOCK), 6)
    add_images(scheduler, 0, length, media)
    run_out(scheduler)
    add_images(scheduler, 1, *prompt_of(2, (-5, 3 * BLOCK), 6))
    add_images(scheduler, 2, *prompt_of(2, (-6, 3 * BLOCK), 6))
    found = {}
    while len(found) < 2:
        found |= dict(step(scheduler).begun)
    # The last token is computed, and the first block has two tokens of text.
    assert found == {1: (length - 1) // BLOCK * BLOCK, 2: 0}


def test_block_is_never_divided() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=5)
    length, media = prompt_of(3, (-2, 9), 4, (-3, 2), 3, sees_ahead=True)
    sequence = add_images(scheduler, 0, length, media)
    ends = []
    while not sequence.num_generated_tokens:
        [part] = step(scheduler).parts
        ends.append(part.start + part.num_tokens)
    assert ends == [3, 12, 16, 21]
    assert length == 21


def test_whole_prompt_is_one_part() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=5)
    length, media = prompt_of(3, (-2, 9), 4, is_whole=True)
    add_images(scheduler, 0, length, media)
    [part] = step(scheduler).parts
    assert (part.start, part.num_tokens, part.completes) == (0, length, True)


def test_preempted_prompt_is_whole_again() -> None:
    scheduler = scheduler_of(blocks=6, max_num_batched_tokens=5)
    length, media = prompt_of(3, (-2, 7), 2, is_whole=True)
    sequence = add_images(scheduler, 0, length, media)
    step(scheduler)
    step(scheduler)
    scheduler._running.preempt(sequence, scheduler._queues.of(sequence).waiting)
    [part] = step(scheduler).parts
    assert (part.start, part.num_tokens, part.completes) == (0, length, False)


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(-4, -2), st.integers(1, 12), st.integers(1, 6), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
)
def test_all_texts_complete(
    prompts: list[tuple[int, int, int, int, int]], budget: int, sees_ahead: bool, is_whole: bool
) -> None:
    scheduler = scheduler_of(blocks=16, max_sequences=4, max_num_batched_tokens=budget)
    memory = BlockMemory(16, BLOCK)
    tenants = [Tenant("a"), Tenant("b", 3.0), Tenant("c")]
    waiting = set()
    for number, (before, key, tokens, after, tenant) in enumerate(prompts):
        length, media = prompt_of(before, (key, tokens), after, is_whole=is_whole, sees_ahead=sees_ahead)
        waiting.add(add_images(scheduler, number, length, media, tenants[tenant]).sequence_id)
    for _ in range(2000):
        plan = step(scheduler, memory)
        assert begun(plan) <= 1
        for part in plan.parts:
            media = part.sequence.request.media
            assert media is not None
            stop = part.start + part.num_tokens
            assert not any(first < stop < end for first, end in media.blocks)
            if part.sequence.num_generated_tokens == 4:
                waiting.discard(part.sequence.sequence_id)
        if not waiting:
            return
    raise AssertionError(f"{len(waiting)} texts never completed")
