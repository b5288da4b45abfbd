"""The served decoder: its tokens are those of the whole model, its steps those of the simulation,
what its clients see is what a simulation of its programs' seconds says.
"""

import dataclasses
import json
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from hybridperf.hardware import load_device
from hybridperf.model import PerfModel
from hybridperf.serving.batching import serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.requests import arriving, looping
from hybridperf.validate import here_served
from hybridperf.validate.here_served import ServedRun, simulated, step_times
from hybridperf_calibration.serving import DecoderConfig, padded, run
from hybridperf_calibration.serving.decoder import JaxDecoder
from hybridperf_calibration.serving.server import Server

SMALL = DecoderConfig(
    width=32, layers=1, heads=2, vocab=61, context=40, batches=(2, 4), chunks=(4, 8)
)


@pytest.fixture(scope="module")
def decoder() -> JaxDecoder:
    return JaxDecoder(SMALL)


class Late(Server):
    """A server that begins when all its clients have sent."""

    came: tuple[list[int], list[int]]  # tokens of prompts, of outputs

    def serve(self, requests: int, alive):  # type: ignore[override]
        while len(self._waiting) < requests and alive():
            self._receive(wait=True)
        prompts = [one.prompt for one in self._waiting]
        self.came = prompts, [one.total - one.prompt for one in self._waiting]
        return super().serve(requests, alive)


@pytest.fixture(scope="module")
def whole(decoder):
    """The answer of the whole model, from the first token on each time."""
    logits = jax.jit(lambda tokens: decoder.model.apply({"params": decoder.params}, tokens))

    def answer(prompt: list[int], output: int) -> list[int]:
        known = list(prompt)
        for _ in range(output):
            tokens = np.zeros((1, SMALL.context), np.int32)
            tokens[0, : len(known)] = known
            known.append(int(np.asarray(logits(tokens))[0, len(known) - 1].argmax()))
        return known[len(prompt) :]

    return answer


def test_sequences_that_share_steps_get_the_whole_models_tokens(decoder, whole) -> None:
    asked = run.plan(run.Run("", clients=3), SMALL, 7, 0)
    server = Server(decoder, 4, 8)
    try:
        seen, busy = run.served(server, asked, None)
    finally:
        server.close()
    expected = [whole(one["prompt"], one["output"]) for one in asked]
    assert [one["tokens"] for one in seen] == expected
    assert len({*map(tuple, expected)}) == len(expected)  # the sequences are not alike
    assert 0 < busy.decoder_s < busy.step_s
    assert busy.steps < sum(one["output"] for one in asked)  # some were computed together
    for one, request in zip(seen, asked, strict=True):
        assert one["token_s"] == sorted(one["token_s"])
        assert one["token_s"][0] > one["sent_s"]
        assert len(one["left_s"]) == len(one["tokens"])
        assert one["sent_s"] < one["left_s"][0] <= one["left_s"][-1]
        if request["after"] >= 0:  # a client sends when its last answer has ended
            assert one["sent_s"] >= seen[request["after"]]["token_s"][-1]


def test_pytorch_serves_the_same_tokens_by_programs_that_can_be_priced(
    decoder, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    by_torch = run.made("torch", SMALL)
    asked = run.plan(run.Run("", clients=3), SMALL, 5, 0)
    answers = []
    for one in (decoder, by_torch):
        server = Server(one, 4, 8)
        try:
            seen, _ = run.served(server, asked, None)
        finally:
            server.close()
        answers.append([each["tokens"] for each in seen])
    assert answers[0] == answers[1]
    by_torch.write_programs(tmp_path / "programs")
    model = PerfModel.datasheet(load_device("here"))
    found = here_served.predicted_programs(model, tmp_path)
    assert {*found} == {*SMALL.programs}
    assert found["decode 4"].time_s > found["decode 2"].time_s > 0


def test_a_loop_around_nothing_is_quicker_than_one_around_a_decoder(decoder) -> None:
    asked, server = run.plan(run.Run("", clients=4), SMALL, 20, 0), Server(decoder, 4, 8)
    try:
        _, busy = run.served(server, asked, None)
    finally:
        server.close()
    loop_s, way_s = run.loop_of(SMALL, 20, None)
    assert 0 < loop_s < busy.step_s / busy.steps
    assert 0 <= way_s["left"] <= way_s["seen"]


@pytest.mark.parametrize("seed", range(2))
def test_the_loop_takes_the_steps_of_the_simulation(decoder, seed: int) -> None:
    """All requests at once, more than there are slots: scheduling has no clock in it."""
    asked = [one | {"after": -1} for one in run.plan(run.Run("", clients=9), SMALL, 9, seed)]
    server = Late(decoder, 4, 8)
    try:
        _, busy = run.served(server, asked, None)
    finally:
        server.close()
    seconds = dict.fromkeys(SMALL.programs, 1.0)
    engine = Engine(step_times(seconds), 4, 8)
    assert busy.steps == serve(arriving(np.zeros(9), *map(np.array, server.came)), [engine]).steps


class Timed:
    """A decoder that notes what its programs take."""

    def __init__(self, decoder: JaxDecoder) -> None:
        self.config, self.cache, self._decoder = decoder.config, decoder.cache, decoder
        self.seconds: dict[str, list[float]] = {name: [] for name in SMALL.programs}

    def _timed(self, kind: str, sizes: tuple[int, ...], count: int, *given):
        start_s = time.perf_counter()
        found = getattr(self._decoder, kind)(*given)
        self.seconds[f"{kind} {padded(sizes, count)}"].append(time.perf_counter() - start_s)
        return found

    def prefill(self, cache, tokens, start):
        return self._timed("prefill", SMALL.chunks, len(tokens), cache, tokens, start)

    def decode(self, caches, tokens, positions):
        return self._timed("decode", SMALL.batches, len(tokens), caches, tokens, positions)


def test_no_token_leaves_before_the_programs_could_have_made_it(decoder) -> None:
    """One client, so no queue: each latency is that of the simulation at the least seconds, and
    more where others had the core; nothing is said of how much more, for tests run beside others.
    """
    timed = Timed(decoder)
    asked, server = run.plan(run.Run("", clients=1), SMALL, 30, 0), Server(timed, 4, 8)
    try:
        seen, busy = run.served(server, asked, None)
    finally:
        server.close()
    for one, request in zip(seen, asked, strict=True):
        one |= {"prompt": len(request["prompt"])}
    found = ServedRun.of({"name": "", "clients": 1, "requests": seen, **vars(busy)})
    seconds = {name: min(some, default=1.0) for name, some in timed.seconds.items()}
    least = simulated(found, seconds, {"config": dataclasses.asdict(SMALL), "loop_s": 0.0})
    assert (found.left_ttft_s > least.ttft_s).all()
    assert (found.left_tpot_s > least.tpot_s * (1 - 1e-9))[found.requests.output > 1].all()
    assert (found.ttft_s > found.left_ttft_s).all()  # the way to the client
    calls = {name: len(some) for name, some in timed.seconds.items() if some}
    assert calls == {name: len(some) for name, some in busy.program_s.items()}
    assert calls["decode 2"] == (found.requests.output - 1).sum()


def test_seconds_of_a_step_are_those_of_the_padded_program() -> None:
    seconds = {"decode 2": 1.0, "decode 4": 3.0, "prefill 4": 10.0, "prefill 8": 50.0}
    times = step_times(seconds)
    for count in (1, 2, 3, 4):
        alone = float(times.seconds(count, 1.0))
        assert alone == pytest.approx(seconds[f"decode {padded((2, 4), count)}"])
        np.testing.assert_allclose(times.seconds(count, 1.0 + np.arange(5.0)), alone)
    for chunk in range(1, 9):
        assert float(times.seconds(0, 0, chunk, 2.0)) == pytest.approx(
            seconds[f"prefill {padded((4, 8), chunk)}"]
        )
    one_by_one = serve(looping(1, np.full(3, 5), np.full(3, 4)), [Engine(times, 4, 8)])
    np.testing.assert_allclose(one_by_one.ttft_s, 50.0)
    np.testing.assert_allclose(one_by_one.tpot_s, 1.0)


def test_bad_words_are_one_sentence(tmp_path, capsys) -> None:
    for options, says in (
        (["--config", "{"], "expected --config as JSON"),
        (["--config", '{"heads": 3}'], "width must be a multiple of heads"),
        (["--config", '{"batches": [4, 2]}'], "batches must rise"),
        (["--config", '{"slots": 3}'], "unknown field 'slots'"),
        (["--cores", "x"], "expected cores like"),
        (["--out", str(tmp_path / "none" / "out.json")], "does not exist"),
    ):
        assert run.main(["--out", str(tmp_path / "out.json"), *options]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert json.dumps([*map(str, tmp_path.iterdir())]) == "[]"
