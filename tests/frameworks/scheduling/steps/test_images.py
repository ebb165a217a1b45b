"""Images of prompts in the steps: none is read before it is ready, cached blocks are those of the same image."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.generation.media import ImageGroup, PromptMedia
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence, StepPlan
from tests.frameworks.scheduling.steps.block_memory import BlockMemory
from tests.frameworks.scheduling.steps.stepping import BLOCK, add, finish, run_out, scheduler_of, step

TOKEN = 7
"""The token of all images."""


def prompt_of(
    *parts: int | tuple[int, int], is_whole: bool = False, sees_ahead: bool = False
) -> tuple[int, PromptMedia]:
    """Return the length of a prompt and its images. A part is a number of text tokens, or (key, tokens) of an image."""
    groups: list[ImageGroup] = []
    blocks: list[tuple[int, int]] = []
    end = 0
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
    scheduler: StepScheduler, sequence_id: int, length: int, media: PromptMedia, tenant: Tenant = DEFAULT_TENANT
) -> Sequence:
    """Add a sequence whose tokens are the same in each prompt."""
    prompt = list(range(length))
    for group in media.groups:
        for first, end in group.spans:
            prompt[first:end] = [TOKEN] * (end - first)
    return add(scheduler, sequence_id, tuple(prompt), 4, media=media, tenant=tenant)


class Tower:
    """Makes the vectors of the scheduler's next image, each in so many steps."""

    def __init__(self, scheduler: StepScheduler, steps: int) -> None:
        self.ready: set[tuple[str, int]] = set()
        self.made: list[int] = []
        self._scheduler, self._steps, self._done = scheduler, steps, 0
        scheduler.is_ready = lambda sequence, group: (sequence.request.tenant.name, group.key) in self.ready

    def work(self) -> None:
        wanted = self._scheduler.wanted
        if wanted is None:
            return
        sequence, group = wanted
        self._done += 1
        if self._done >= self._steps:
            self._done = 0
            self.ready.add((sequence.request.tenant.name, group.key))
            self.made.append(group.key)

    def check(self, plan: StepPlan) -> None:
        """Check that each image in a step is ready."""
        for part in plan.parts:
            media, stop = part.sequence.request.media, part.start + part.num_tokens
            if media is not None:
                own = [group for group in media.groups for a, b in group.spans if a < stop and b > part.start]
                assert media.is_whole or all(self._scheduler.is_ready(part.sequence, group) for group in own)


def test_texts_continue_while_images_are_made() -> None:
    scheduler = scheduler_of()
    tower = Tower(scheduler, 3)
    text = add(scheduler, 0, 3, 60)
    step(scheduler)
    for number in range(1, 4):
        add_images(scheduler, number, *prompt_of(2, (-number - 1, 6), 3, (-number - 10, 6), 2))
    steps = 0
    while len(tower.made) < 6:
        plan = step(scheduler)
        assert text in [part.sequence for part in plan.parts], "the running text continues"
        tower.check(plan)
        tower.work()
        steps += 1
    assert len(set(tower.made)) == 6
    assert steps == 6 * 3, "an image is made at each time"


def test_text_behind_unready_image_starts() -> None:
    scheduler = scheduler_of()
    scheduler.is_ready = lambda *_: False
    add_images(scheduler, 0, *prompt_of((-2, 6), 3))
    text = add(scheduler, 1, 3, 4)
    assert [part.sequence for part in step(scheduler).parts] == [text]
    assert scheduler.wanted is not None
    assert scheduler.wanted[0].sequence_id == 0


def test_text_before_image_is_computed_first() -> None:
    scheduler = scheduler_of()
    scheduler.is_ready = lambda *_: False
    add_images(scheduler, 0, *prompt_of(5, (-2, 6), 3))
    [part] = step(scheduler).parts
    assert (part.start, part.num_tokens) == (0, 5)
    assert not scheduler.plan().parts


def test_cached_image_is_not_wanted() -> None:
    scheduler = scheduler_of()
    tower = Tower(scheduler, 1)
    prompt = prompt_of(1, (-5, 2 * BLOCK), 2 * BLOCK)
    add_images(scheduler, 0, *prompt)
    while scheduler.running or scheduler.stats(0).waiting:
        plan = scheduler.plan()
        if plan.parts:
            finish(scheduler, plan)
        tower.work()
    tower.ready.clear()
    again = add_images(scheduler, 1, *prompt)
    assert [part.sequence for part in step(scheduler).parts] == [again]
    assert scheduler.wanted is None


def test_blocks_of_other_image_are_not_cached() -> None:
    scheduler = scheduler_of()
    length, media = prompt_of(2, (-5, 3 * BLOCK), 6)
    add_images(scheduler, 0, length, media)
    run_out(scheduler)
    add_images(scheduler, 1, *prompt_of(2, (-5, 3 * BLOCK), 6))
    add_images(scheduler, 2, *prompt_of(2, (-6, 3 * BLOCK), 6))
    found: dict[int, int] = {}
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
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_all_texts_complete(
    prompts: list[tuple[int, int, int, int, int]], budget: int, steps: int, sees_ahead: bool, is_whole: bool
) -> None:
    scheduler = scheduler_of(blocks=16, max_sequences=4, max_num_batched_tokens=budget)
    memory = BlockMemory(16, BLOCK)
    tower = Tower(scheduler, steps)
    tenants = [Tenant("a"), Tenant("b", 3.0), Tenant("c")]
    waiting = set()
    for number, (before, key, tokens, after, tenant) in enumerate(prompts):
        length, media = prompt_of(before, (key, tokens), after, is_whole=is_whole, sees_ahead=sees_ahead)
        waiting.add(add_images(scheduler, number, length, media, tenants[tenant]).sequence_id)
    for _ in range(4000):
        plan = scheduler.plan()
        if not plan.parts:
            assert scheduler.wanted is not None, "there is work, and nothing is planned"
            tower.work()
            continue
        memory.carry_out(plan)
        finish(scheduler, plan)
        tower.check(plan)
        for part in plan.parts:
            own = part.sequence.request.media
            assert own is not None
            stop = part.start + part.num_tokens
            assert not any(first < stop < end for first, end in own.blocks)
            if part.sequence.num_generated_tokens == 4:
                waiting.discard(part.sequence.sequence_id)
        tower.work()
        if not waiting:
            return
    raise AssertionError(f"{len(waiting)} texts never completed")
