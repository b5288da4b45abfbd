"""What a move on the page asks of the same command again: nothing is compiled for it."""

import jax
import pytest

import hybridperf as hp

MOVES = {
    "step": "steps model=gpt2-xl gpu=h100_sxm n_gpus=8 tp=1 pp=1 micro_batch=1 global_batch={}",
    "layouts": "plan --shape gpt2-xl --system dgx_h100 --gpus 2 --only zero=0 --batch {}",
    "run": "run --shape gpt2-xl --system dgx_h100 --gpus 2 --batch 4 --tokens {}B",
    "serving": "serve --shape llama2-7b --system h200 --gpus 1 --isl {} --osl 512 --sla ttft=1s",
}


@pytest.mark.parametrize("view", MOVES)
def test_a_move_compiles_nothing(view: str) -> None:
    compiled: list[str] = []

    def compiles(event: str, _: float, **__: object) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    def asked(at: int) -> object:
        return hp.ask(*MOVES[view].format(8 * at).split())

    first = asked(1)
    jax.monitoring.register_event_duration_secs_listener(compiles)
    try:
        assert asked(2) != first
        assert compiled == []
    finally:
        jax.monitoring.unregister_event_duration_listener(compiles)
