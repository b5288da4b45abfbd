"""Kernels told apart by name. Names are as libraries and profilers write them."""

import pytest

from hybridperf.traces.events import COPY, FILL, KERNEL
from hybridperf.traces.readers.kineto_devices import communicates, kind_of_kernel


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "void dpsk::ep::internode::dispatch<false, 2, false, 131072, 4>(int4*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*, float*)",
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, float*, int*)",
        "nvshmemi_proxy_complete_kernel",
        "void nvshmem_barrier_kernel<int>(int)",
        "void a2a_dispatch_send_kernel<true, 16, unsigned char>(unsigned long)",
        "void (anonymous namespace)::dispatchKernel<10u, true, true>(int*, unsigned long)",
        "void mscclpp::collective::allreduceRsAg<__half>(void*)",
        "void executionKernel<__half, mscclpp::LL16Packet>(int, __half*)",
        "void allreduce7<__half>(__half*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*)",
        "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 8>(long)",
        "multimem_all_reduce_kernel",
        "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)",
        "EpDispatchIntraNodeKernel_bf16",
        "void aiter::reduce_scatter_cross_device_store<__half, 8>(RankData*)",
    ],
)
def test_kernels_that_move_data_between_devices(name):
    assert communicates(name)


@pytest.mark.parametrize(
    "name",
    [
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void cutlass::Kernel<AllReduceEpilogue>(Params)",  # as an argument
        "triton_poi_fused_all_gather_into_tensor_add_0",  # what Inductor computes on its result
        "cub::DispatchReduceByKey<int>",
        "void deep_gemm::fp8_gemm_kernel<7168>(float*)",
        "__amd_rocclr_copyBuffer",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
    ],
)
def test_kernels_that_do_not(name):
    assert not communicates(name)


def test_copies_that_a_runtime_runs_as_kernels_and_events_that_are_no_work():
    kinds = [
        kind_of_kernel(name)
        for name in ("sgemm", "__amd_rocclr_copyBuffer.kd", "__amd_rocclr_fillBufferAligned")
    ]
    assert kinds == [KERNEL, COPY, FILL]
    assert [kind_of_kernel(name) for name in ("dma_request", "pe_exe")] == [COPY, KERNEL]
    assert kind_of_kernel("event_wait") is None  # MTIA: a stream waits for another
