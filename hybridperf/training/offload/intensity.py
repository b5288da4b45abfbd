"""FLOPs per byte that a training step does with each kind of state, and the share of its peak a GPU
keeps when the state lies far away.

A GPT of nl blocks of width hd, bsz samples of seq tokens per GPU, a checkpoint every ci blocks,
everything computed again (after ZeRO-Infinity, Rajbhandari et al. 2021; formulas.md 3.6, where the
formulas are recalled and their worked numbers recomputed):

    computed         2 * 4 * 12 * bsz * seq * nl * hd^2     forward, again, and twice that backward
    weights          12 nl hd^2 of them; moved three times in 2 bytes, their gradients once: 8 bytes
                     each       seq * bsz
    optimizer        16 bytes per weight, read and written: 32
                     seq * bsz / 4
    checkpoints      2 bytes * bsz * seq * hd * nl / ci, written and read
                     24 * hd * ci

State that is divided over all GPUs comes to each with the bandwidth of all. Without any overlap

    efficiency = t_compute / (t_compute + t_fetch) = ait * bw / (ait * bw + peak)

Plain arithmetic throughout: numbers, columns and JAX's traced numbers alike.
"""

from __future__ import annotations

from typing import Any

BLOCK_WEIGHTS = 12  # hd^2 in attention's four and the MLP's two matrices
_PASSES = 4  # forward, recomputed forward, and a backward of two
_MULTIPLY_ADD = 2
_HALF_BYTES = 2.0
_STATE_BYTES = (
    20.0  # per weight: itself and its gradient in 2, fp32 weight, gradient and two moments in 16
)
_FETCHES = 3  # of a weight: forward, recomputed forward, backward
_UPDATED_BYTES = 32.0  # 16 per weight, in and out


def model_state_bytes(layers: Any, hidden: Any) -> Any:
    """Weights, gradients and optimizer of all blocks: 240 nl hd^2."""
    return _STATE_BYTES * BLOCK_WEIGHTS * layers * hidden**2


def checkpoint_bytes(batch: Any, seq: Any, hidden: Any, layers: Any, every: Any = 1) -> Any:
    """Activation checkpoints of a step."""
    return _HALF_BYTES * batch * seq * hidden * layers / every


def step_flops(batch: Any, seq: Any, layers: Any, hidden: Any) -> Any:
    """FLOPs of a step in the blocks' matrices."""
    return _MULTIPLY_ADD * _PASSES * BLOCK_WEIGHTS * batch * seq * layers * hidden**2


def parameter_intensity(batch: Any, seq: Any) -> Any:
    """FLOPs per byte of weights and gradients moved; `batch` samples on a GPU."""
    return _MULTIPLY_ADD * _PASSES * batch * seq / (_HALF_BYTES * (_FETCHES + 1))


def optimizer_intensity(batch: Any, seq: Any) -> Any:
    """FLOPs per byte of optimizer state moved."""
    return _MULTIPLY_ADD * _PASSES * batch * seq / _UPDATED_BYTES


def activation_intensity(hidden: Any, every: Any = 1) -> Any:
    """FLOPs per byte of checkpoints moved, one per `every` blocks."""
    return _MULTIPLY_ADD * _PASSES * BLOCK_WEIGHTS * hidden * every / (2 * _HALF_BYTES)


def efficiency(intensity: Any, bytes_per_s: Any, peak_flops_per_s: Any) -> Any:
    """Share of `peak_flops_per_s` (what the GPU achieves with all at hand) that is left when bytes
    come in at `bytes_per_s`, unhidden.
    """
    return intensity * bytes_per_s / (intensity * bytes_per_s + peak_flops_per_s)


def needed_bytes_per_s(efficiency: Any, intensity: Any, peak_flops_per_s: Any) -> Any:
    """The bandwidth that leaves a share of peak: the inverse of `efficiency`."""
    return efficiency / (1 - efficiency) * peak_flops_per_s / intensity


def activation_working_bytes(batch: Any, seq: Any, hidden: Any, heads: Any, every: Any = 1) -> Any:
    """Activations between two checkpoints, which stay on the GPU while they are computed again."""
    return batch * seq * every * (16 * hidden + 2 * heads * seq)


def weight_working_bytes(hidden: Any) -> Any:
    """The largest matrix, hd x 4 hd, and its gradient, in 2 bytes each: what stays on the GPU of
    the weights.
    """
    return 2 * _HALF_BYTES * 4 * hidden**2
