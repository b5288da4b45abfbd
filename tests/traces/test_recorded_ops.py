"""Recorded ops become ours: by hand, by kind of answer, and for every name that must not be
guessed.
"""

import pytest

from hybridperf.ops import (
    BatchedGemm,
    Convolution,
    Copy,
    Cumulative,
    Elementwise,
    EncoderAttention,
    Fused,
    Gather,
    Gemm,
    Norm,
    OptimizerUpdate,
    PrefillAttention,
    Reduction,
    RmsNorm,
    ScatterAdd,
    Softmax,
    Sort,
    columns,
)
from hybridperf.ops.base import Op
from hybridperf.ops.embedding_bag import EmbeddingBag
from hybridperf.traces.recorded.graph import RecordedArguments
from hybridperf.traces.recorded.graph import recorded_op as ours
from hybridperf.workloads.programs.torch.ops import NO_KERNEL, RULES, by_parts

F = "Tensor(float)"
I64 = "Tensor(long int)"


def recorded_op(name, shapes, types, *, values=(), output_shapes=(), output_types=()):
    """`recorded_op` of what a trace lists."""
    given = RecordedArguments(shapes, types, values)
    return ours(name, given, RecordedArguments(output_shapes, output_types))


def only(name: str, shapes: list, types: list, **more: object) -> Op:
    calls = recorded_op(name, shapes, types, **more)  # type: ignore[arg-type]
    assert calls is not None
    assert len(calls) == 1
    return calls[0].op


def test_products_by_hand() -> None:
    assert only("aten::mm", [[16, 1], [1, 256]], [F, F]) == Gemm("fp32", 16, 256, 1)
    assert only(
        "aten::addmm", [[256], [16, 13], [13, 256], [], []], [F, F, F, "Int", "Int"]
    ) == Gemm("fp32", 16, 256, 13, bias=1)
    assert only("aten::addmm", [[16, 256], [16, 13], [13, 256]], [F, F, F]) == Gemm(
        "fp32", 16, 256, 13
    )  # a whole matrix added: no bias
    assert only("aten::linear", [[4, 8, 13], [256, 13], [256]], [F, F, F]) == Gemm(
        "fp32", 32, 256, 13, bias=1, transposed_b=1
    )
    assert only("aten::linear", [[4, 13], [256, 13], []], [F, F, "None"]) == Gemm(
        "fp32", 4, 256, 13, transposed_b=1
    )
    assert only("aten::bmm", [[16, 27, 16], [16, 16, 27]], [F, F]) == BatchedGemm(
        "fp32", 16, 27, 27, 16
    )
    assert only("aten::matmul", [[2, 3, 5, 7], [7, 11]], [F, F]) == Gemm("fp32", 30, 11, 7)
    assert only("aten::matmul", [[2, 1, 5, 7], [3, 7, 11]], [F, F]) == BatchedGemm(
        "fp32", 6, 5, 11, 7
    )
    assert only("aten::mv", [[5, 7], [7]], [F, F]) == Gemm("fp32", 5, 1, 7)
    assert recorded_op("aten::mm", [[16, 2], [1, 256]], [F, F]) is None  # they do not fit


def test_a_convolution_needs_its_result_or_its_arguments() -> None:
    shapes = [[32, 3, 224, 224], [64, 3, 7, 7], [[], []], [[], []], [[], []], [], [], [], []]
    types = [F, F, *["GenericList[Int,Int]"] * 3, "Int", "Bool", "Bool", "Bool"]
    expected = Convolution("fp32", 32, 3, 64, 224, 112, 7, kw=7, w_in=224, w_out=112)
    assert (
        only(
            "aten::cudnn_convolution",
            shapes,
            types,
            output_shapes=[[32, 64, 112, 112]],
            output_types=[F],
        )
        == expected
    )
    values = [
        [1, 2, 0, 9, 4, "cuda:0"],
        [3, 4, 0, 9, 4, "cuda:0"],
        [3, 3],
        [2, 2],
        [1, 1],
        1,
        False,
        False,
        False,
    ]
    assert only("aten::cudnn_convolution", shapes, types, values=values) == expected
    texts = ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", "False"]  # as the profiler writes them
    assert (
        only(
            "aten::cudnn_convolution",
            [*shapes[:2], *[[]] * 7],
            ["float", "float", *[""] * 7],
            values=texts,
        )
        == expected
    )
    assert recorded_op("aten::cudnn_convolution", shapes, types) is None


def test_a_convolution_has_as_many_gradients_as_its_mask_says() -> None:
    shapes = [
        [32, 2048, 7, 7],
        [32, 512, 7, 7],
        [2048, 512, 1, 1],
        [[]],
        *[[[], []]] * 3,
        [],
        [[], []],
        [],
        [[], [], []],
    ]
    types = [
        F,
        F,
        F,
        "GenericList[Int]",
        *["GenericList[Int,Int]"] * 3,
        "Bool",
        "GenericList[Int,Int]",
        "Int",
        "GenericList[Bool,Bool,Bool]",
    ]
    image = {
        "batch": 32,
        "c_in": 512,
        "c_out": 2048,
        "h_in": 7,
        "h_out": 7,
        "kh": 1,
        "kw": 1,
        "w_in": 7,
        "w_out": 7,
    }
    values = [0, 0, 0, [0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    both = recorded_op(
        "aten::convolution_backward", shapes, types, values=[*values, [True, True, False]]
    )
    assert both is not None
    assert [call.op for call in both] == [
        Convolution("fp32", **image, direction=d) for d in ("bwd_inputs", "bwd_params")
    ]
    first_layer = recorded_op(
        "aten::convolution_backward", shapes, types, values=[*values, [False, True, True]]
    )
    assert first_layer is not None
    assert [call.op for call in first_layer] == [
        Convolution("fp32", **image, direction="bwd_params"), Reduction("fp32", 2048, 32 * 49),
    ]  # fmt: skip


def test_a_transposed_convolution_is_a_gradient() -> None:
    op = only(
        "aten::convolution", [[8, 64, 16, 16], [64, 32, 4, 4], [], [], [], [], []],
        [F, F, "None", "", "", "", "Bool"],
        values=["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True"], output_shapes=[[8, 32, 32, 32]],
        output_types=[F],
    )  # fmt: skip
    assert op == Convolution(
        "fp32", 8, 32, 64, 32, 16, 4, kw=4, w_in=32, w_out=16, direction="bwd_inputs"
    )


def test_elementwise_ops_count_what_they_read() -> None:
    assert only(
        "aten::add", [[1024, 256], [1024, 256], []], ["float", "float", "Scalar"]
    ) == Elementwise("fp32", 1024, 256, 2, 1, 0)
    assert only("aten::add_", [[1024, 256], [256], []], [F, F, "Int"]) == Elementwise(
        "fp32", 1024, 256, 1, 1, 0
    )
    assert only("aten::mul", [[1024, 256], []], [F, "Tensor(double)"]) == Elementwise(
        "fp32", 1024, 256, 1, 1, 0
    )
    assert only("aten::sigmoid", [[64]], ["c10::Half"]) == Elementwise("fp16", 1, 64, 1, 2, 1)
    # nothing of ours reads three tensors: the same counts in general form, 16 numbers read thrice
    # and written once
    assert only("aten::addcmul_", [[4, 4]] * 3 + [[]], [F, F, F, "Int"]).work().bytes == 4 * 16 * 4
    compared = only("aten::ge", [[100], []], [F, "Scalar"])
    assert compared.work().bytes == 100 * 4 + 100  # flags are bytes
    assert only("aten::fill_", [[1000], []], [F, "Scalar"]).work().bytes == 4000
    assert only("aten::copy_", [[10, 10], [10, 10], []], [F, F, "Bool"]) == Copy("fp32", 10, 10)
    assert (
        only("aten::copy_", [[100], [100], []], ["Tensor(c10::Half)", F, "Bool"]).work().bytes
        == 600
    )
    lists = [[[64, 3], [64]], [[64, 3], [64]], []]
    types = ["GenericList[Tensor(float),Tensor(float)]"] * 2 + ["Int"]
    assert only("aten::_foreach_add_", lists, types) == Elementwise("fp32", 1, 256, 2, 1, 0)


def test_a_result_that_will_be_resized_is_not_read() -> None:
    assert only("aten::sub", [[351], [351], [0]], [F, F, F]) == Elementwise("fp32", 1, 351, 2, 1, 0)
    assert (
        recorded_op("aten::arange", [[], [], [], [0]], ["Scalar", "Scalar", "Scalar", "long int"])
        is None
    )
    assert (
        only(
            "aten::arange",
            [[], [], [], [0]],
            ["Int"] * 3 + [I64],
            output_shapes=[[351]],
            output_types=[I64],
        )
        .work()
        .bytes
        == 351 * 8
    )


def test_rows_of_norms_reductions_and_softmax() -> None:
    assert only(
        "aten::native_layer_norm", [[8, 128, 512], [], [512], [512], []], [F, "", F, F, ""]
    ) == Norm("fp32", 1024, 512)
    assert only("aten::cudnn_batch_norm", [[32, 64, 7, 7], [64], [64]], [F, F, F]) == Norm(
        "fp32", 32 * 49, 64
    )
    assert only("aten::rms_norm", [[8, 512], [], [512]], [F, "", F]) == RmsNorm("fp32", 8, 512)
    assert only(
        "aten::_softmax", [[8, 4, 16], [], []], [F, "Int", "Bool"], values=["", 1, False]
    ) == Softmax("fp32", 128, 4)
    assert only("aten::sum", [[32, 1000]], [F]) == Reduction("fp32", 1, 32000)
    assert only(
        "aten::sum",
        [[32, 1000], [[]], [], []],
        [F, "GenericList[Int]", "Bool", "None"],
        values=["", [1]],
    ) == Reduction("fp32", 32, 1000)
    assert only("aten::cumsum", [[417], [], []], [I64, "Int", "None"]) == Cumulative(
        "int64", 1, 417
    )


def test_tables_are_looked_up_and_updated() -> None:
    assert only("aten::embedding", [[50000, 768], [8, 128]], ["float", "long"]) == Gather(
        "fp32", 1024, 768, 50000
    )
    assert only("aten::index_select", [[755000], [], [1024]], ["float", "Scalar", "int"]) == Gather(
        "fp32", 1024, 1, 755000
    )
    assert only("aten::_embedding_bag", [[1000, 64], [4096], [257]], [F, I64, I64]) == Gather(
        "fp32", 4096, 64, 1000, pooled=1
    )
    added = recorded_op(
        "aten::embedding_dense_backward",
        [[8, 128, 768], [8, 128], [], [], []],
        [F, I64, "Int", "Int", "Bool"],
        values=["", "", 50000],
    )
    assert added is not None
    assert [call.op for call in added] == [
        Sort("int64", 1, 1024),
        ScatterAdd("fp32", 1024, 768, 50000),
    ]
    shapes: list = [[0], [640000], [0], [0, 0], [3], [3], [4], [], [], [4], [], [768], [385]]
    types = [F] * 4 + ["Tensor(int)", I64, "Tensor(int)", "Int", "Int", I64, "Int", I64, I64]
    name = "fbgemm::split_embedding_codegen_lookup_adagrad_function"
    # three tables 16 wide: 128 samples of 6 lookups
    expected = EmbeddingBag("fp32", 128, 6, 40000, 16, tables=3, width=48)
    assert only(name, shapes, types, output_shapes=[[128, 48]], output_types=[F]) == expected
    assert only(name, shapes, types, values=[0] * 7 + [48, 16]) == expected
    assert recorded_op(name, shapes, types) is None  # nobody says how wide a row is


def test_attention_only_where_it_is_said_to_be_causal_or_not() -> None:
    shapes = [[4, 12, 512, 64]] * 3 + [[], [], []]
    types = ["c10::BFloat16"] * 3 + ["", "Scalar", "Scalar"]
    name = "aten::_scaled_dot_product_flash_attention"
    assert only(name, shapes, types, values=["", "", "", "0.", "True"]) == PrefillAttention(
        "bf16", 4, 512, 12, 64, kv_heads=12, kv_len=512
    )
    assert only(name, shapes, types, values=["", "", "", "0.", "False"]) == EncoderAttention(
        "bf16", 4, 512, 12, 64, kv_heads=12
    )
    assert recorded_op(name, shapes, types) is None


def test_optimizers_count_all_parameters() -> None:
    lists = [[[10, 10], [5]]] * 4
    types = ["GenericList[Tensor(float),Tensor(float)]"] * 4
    assert only("aten::_fused_adamw_", lists, types) == OptimizerUpdate("fp32", 105, 4, 3, 12, 1)


@pytest.mark.parametrize(
    "name",
    [
        "aten::view",
        "aten::t",
        "aten::as_strided",
        "aten::empty",
        "aten::detach",
        "detach",
        "AddBackward0",
        "aten::to",
        "aten::resize_",
        "autograd::engine::evaluate_function: MulBackward0",
    ],
)
def test_what_runs_no_kernel_says_so(name: str) -> None:
    assert recorded_op(name, [[4, 4]], [F]) == NO_KERNEL


def test_nothing_to_do_is_no_kernel() -> None:
    assert recorded_op("aten::add", [[0, 4], [0, 4]], [F, F]) == NO_KERNEL


@pytest.mark.parametrize(
    "name",
    [
        "mylib::fused_thing",
        "aten::svd",
        "FlashAttnFunc",
        "record_param_comms",
        "fbgemm::new_thing",
        "",
        "aten::",
    ],
)
def test_what_nobody_knows_is_unknown(name: str) -> None:
    assert recorded_op(name, [[4, 4], [4, 4]], [F, F]) is None


def test_a_format_nobody_knows_is_unknown() -> None:
    assert (
        recorded_op("aten::mul", [[4, 4], [4, 4]], ["c10::complex<float>", "c10::complex<float>"])
        is None
    )


def test_parts() -> None:
    assert by_parts("aten::linear")
    assert by_parts("aten::relu_")
    assert not by_parts("aten::addmm")
    assert not by_parts("mylib::linear")


@pytest.mark.parametrize("kind", sorted(RULES))
def test_no_rule_breaks_on_odd_arguments(kind: str) -> None:
    """Any answer will do, and every op answered has a row in a table of ops and a finite amount of
    work.
    """
    odd: list = [
        [],
        [[]],
        [[4, 4]],
        [[4, 4]] * 3,
        [[4, 4, 4, 4]] * 12,
        [[3, 0]] * 4,
        [None] * 4,
        ["x"],
        [[-1, 2]],
        [[[4], [5, 6]]] * 4,
        [[1.5]],
    ]
    kinds = [
        [],
        [F],
        [F] * 12,
        [I64] * 12,
        ["float"] * 3,
        ["TensorList"] * 4,
        ["GenericList[Tensor(float),Int]"] * 4,
        [None, 3],
        ["Tensor("],
    ]
    for shapes in odd:
        for types in kinds:
            for values in (
                [],
                [1] * 12,
                [[1, 2]] * 12,
                ["[0, 1]"] * 12,
                ["["] * 12,
                [None] * 12,
                [-1] * 12,
                [True] * 12,
            ):
                for call in recorded_op(f"aten::{kind}", shapes, types, values=values) or ():
                    assert columns(call.op)["op"]
                    work = call.op.work()
                    assert work.bytes > 0
                    assert all(size >= 0 for size in (work.flops, work.transcendentals, work.steps))
                    assert isinstance(call.op, Fused) or all(
                        getattr(call.op, dim) >= 0 for dim in call.op.dimensions()
                    )
