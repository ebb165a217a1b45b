"""Load a model on several ranks, for the engine on rank 0."""

from dataclasses import replace

import torch

from frameworks.core.progress import phase
from frameworks.pytorch import device_kernels
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.loading.served import GeneratorLoad, ServedModel
from frameworks.pytorch.generation.tensor_parallel.checks import device_of_rank
from frameworks.pytorch.generation.tensor_parallel.followers import Followers
from frameworks.pytorch.generation.tensor_parallel.rank_group import RankGroup
from frameworks.pytorch.generation.tensor_parallel.shard import Shard
from frameworks.pytorch.generation.tensor_parallel.shard_loading import LoadedShard, load_shard_runner
from frameworks.pytorch.generation.tensor_parallel.step_messages import encode_step
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.sequence import StepPlan

_GRAPHS = "none: tensor_parallel runs each step layer by layer"


class ParallelRunner:
    """A StepRunner: rank 0 computes each step together with its followers."""

    def __init__(self, runner: PagedRunner, followers: Followers) -> None:
        """`runner`: of rank 0."""
        self.followers = followers
        self._runner = runner

    @property
    def block_bytes(self) -> int:
        return self._runner.block_bytes * self.followers.size

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """As StepRunner.logits. Raises ModelLost where a rank has failed; later steps then raise it too."""
        self.followers.send(encode_step(plan))
        try:
            logits = self._runner.logits(plan)
            if logits.is_cuda:
                # An operation that was aborted raises nothing here, and leaves other numbers.
                torch.cuda.current_stream(logits.device).synchronize()
                self.followers.check()
            return logits
        except Exception as error:
            raise self.followers.lost_in_step(error) from error


def load_parallel(load: GeneratorLoad) -> ServedModel:
    """Load the model of an entry with `tensor_parallel`, on the ranks' devices from that of the load on.

    The processes of the other ranks end with ServedModel.followers. Raises InvalidModel, OutOfMemory, ModelLost.
    """
    phase("starting the ranks")
    # The processes inherit the folder of compiled kernels.
    device_kernels.are_available(torch.device(load.device.id))
    # The tokenizer is of this process.
    load = replace(load, tokenizer=None)
    followers = Followers(load)
    try:
        loaded = _load(load, followers)
    except BaseException:
        followers.close()
        raise
    is_on_device = load.device.kind == "cuda"
    pool = BlockPool(loaded.runner.cache.blocks, BLOCK_TOKENS)
    pool.moves_ended = not loaded.runner.layouts.makes_tables
    return ServedModel(
        ParallelRunner(loaded.runner, followers),
        pool,
        loaded.max_context_tokens,
        loaded.memory_bytes,
        products=loaded.products,
        graphs=_GRAPHS if is_on_device else None,
        followers=followers,
        devices=tuple(device_of_rank(load.device, rank).id for rank in range(followers.size)),
    )


def _load(load: GeneratorLoad, followers: Followers) -> LoadedShard:
    """Load the part of rank 0 beside the others. Where an operation fails, the rank that ended has the cause."""
    followers.meet()
    try:
        shard = Shard(0, followers.size)
        followers.group = RankGroup(shard, torch.device(load.device.id), followers.group_file)
        loaded = load_shard_runner(load, followers.group, followers.meet)
        followers.meet()
        return loaded
    except Exception as error:
        # Without a group the ranks did not connect: one has ended.
        if followers.group is None or followers.group.is_broken:
            raise followers.reason() from error
        raise
