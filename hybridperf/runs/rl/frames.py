"""Steps of reinforcement learning, of a table or one: what they take, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hybridperf.fields import fields_of
from hybridperf.fields.columns import answered, read_columns, values_in
from hybridperf.fields.frames import Predict, Question, Rows, as_frame, in_parts
from hybridperf.runs.rl.settings import config_of
from hybridperf.runs.rl.step import PARTS, RlStep, rl_step

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "predicted_s", "low_s", "high_s", "generate_s", "logprob_s", "train_s", "refit_s", "idle_s",
    "tokens_per_s_gpu", "note",
)  # fmt: skip


def predict_rl(rows: Rows) -> pandas.DataFrame:
    """Seconds of steps of reinforcement learning, and of their parts.

        hp.predict_rl([{"framework": "nemo_rl", "algorithm": "grpo", "model": "llama3-8b",
                        "gpu": "h100_sxm", "n_gpus": 16, "rollouts": 2048, "train_batch": 512,
                        "mean_length": 1060, "max_length": 4096, "train_pp": 2}])

    Adds `predicted_s, low_s, high_s` (a 90 % interval), `generate_s, logprob_s, train_s, refit_s`,
    `idle_s` (that a GPU waits for the other side, in the mean), `tokens_per_s_gpu` (prompts and
    answers), `note`. A column of one of these names is kept as `given_NAME`.

    Args:
        rows: R steps, in the columns of `hybridperf rl --help`.

    Raises:
        InputError: for a column that resembles one that is read.
    """
    return in_parts(as_frame(rows), _steps(), "steps of reinforcement learning", first=4)


def rl(config: Mapping[str, Any]) -> RlStep:
    """One step of reinforcement learning: seconds, interval, parts.

    Args:
        config: fields as a row of `predict_rl` has them, `{"model": "qwen3-32b", ...}`.

    Raises:
        InputError: for a field that nobody knows, and what cannot be.
    """
    frame = read_columns(as_frame([config]), "rl").frame
    record = {str(name): cell for name, cell in frame.to_dict("records")[0].items()}
    return rl_step(config_of(values_in(record, fields_of("rl"))))


def _steps() -> Predict:
    return lambda part, _: answered(part, "rl", _answer, COLUMNS, ("note",))


def _answer(said: Mapping[str, Any]) -> dict[str, Any]:
    found = rl_step(config_of(said))
    parts = {f"{name}_s": found.parts[name] for name in PARTS if f"{name}_s" in COLUMNS}
    return {
        "predicted_s": found.seconds, "low_s": found.low_s, "high_s": found.high_s, **parts,
        "idle_s": found.idle_s, "tokens_per_s_gpu": found.tokens_per_s_gpu,
        "note": "; ".join(dict.fromkeys(found.notes)),
    }  # fmt: skip


QUESTION = Question(_steps, COLUMNS, registry="rl", chunk=64)
