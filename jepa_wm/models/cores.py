"""Run independent pieces of work side by side on the CPU's cores.

PyTorch splits every single operation over its threads and makes them meet at its end, hundreds of
times a rollout. Whole pieces meet once: faster with small operations, and many times faster where
other programs want the same cores, since a thread that waits for one that is not running gains
nothing.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


def map_on_cores(
    function: Callable[..., Tensor], pieces: Sequence[tuple[Any, ...]], most: int = 1
) -> list[Tensor]:
    """Return ``[function(*piece) for piece in pieces]``, computed on ``torch.get_num_threads()``.

    Args:
        function: Pure; it runs without gradients exactly if the caller does.
        pieces: Arguments.
        most: Threads that one piece can make use of, where there are fewer pieces than threads.
    """
    threads, mode = torch.get_num_threads(), torch.is_inference_mode_enabled()
    workers = max(1, min(threads, len(pieces)))
    share = max(1, min(threads // workers, most))

    def run(piece: tuple[Any, ...]) -> Tensor:
        with torch.inference_mode(mode):  # the mode is the thread's own
            return function(*piece)

    try:
        if workers == 1:
            torch.set_num_threads(share)
            return [function(*piece) for piece in pieces]
        with ThreadPoolExecutor(workers, "cores", torch.set_num_threads, (share,)) as pool:
            return list(pool.map(run, pieces))
    finally:
        torch.set_num_threads(threads)  # a thread's number is also that of threads made later
