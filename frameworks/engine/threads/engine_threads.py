"""The threads that the engines of one process share."""

from concurrent.futures import ThreadPoolExecutor

from frameworks.engine.threads.image_threads import ImageThreads
from frameworks.engine.threads.tokenizer_threads import TokenizerThreads

# A model compiles one constraint at a time, for up to seconds; the other threads are for constraints that are cached.
CONSTRAINT_THREADS = 4


class EngineThreads:
    """`tokenizers`: tokenize long texts, and compute responses of many numbers. `images`: decode and prepare images.
    `constraints`: compile constraints.
    """

    def __init__(self) -> None:
        self.tokenizers = TokenizerThreads()
        self.images = ImageThreads()
        self.constraints = ThreadPoolExecutor(CONSTRAINT_THREADS, thread_name_prefix="constrain")

    def close(self) -> None:
        """End the threads; queued texts, images and constraints are dropped."""
        self.tokenizers.close()
        self.images.close()
        self.constraints.shutdown(wait=False, cancel_futures=True)
