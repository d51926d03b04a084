from __future__ import annotations

import pytest

from analysis.trace.reading.names import Collective, Kind, WorkClass, class_of, class_of_op, collective_of, kind_of

COMMUNICATION = [
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", Collective.ALL_REDUCE),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", Collective.BROADCAST),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Collective.ALL_GATHER),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Collective.REDUCE_SCATTER),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Collective.OTHER),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Collective.P2P),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", Collective.UNKNOWN),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", Collective.UNKNOWN),
    ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", Collective.ALL_REDUCE),
    (
        "void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8>(float**)",
        Collective.ALL_REDUCE,
    ),
    ("void c10d::symmetric_memory::multimem_all_gather_kernel<16>(char*, char*)", Collective.ALL_GATHER),
    ("void (anonymous namespace)::multimem_one_shot_reduce_kernel<float, 16>(float*)", Collective.ALL_REDUCE),
    ("nvshmem_barrier_all_kernel(int)", Collective.OTHER),
    ("void nvshmemi_transfer<1>(char*)", Collective.UNKNOWN),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", Collective.ALL_REDUCE),
    ("void deep_ep::internode::dispatch<true>(int)", Collective.UNKNOWN),
    ("Memcpy PtoP (Device -> Device)", Collective.UNKNOWN),
    ("gloo:all_to_all", Collective.ALL_TO_ALL),
]


@pytest.mark.parametrize(("name", "collective"), COMMUNICATION)
def test_a_communication_kernel_is_known_by_its_name_and_an_unknown_one_is_still_communication(
    name: str, collective: Collective
) -> None:
    assert class_of(name) is WorkClass.COMM
    assert collective_of(name) is collective


@pytest.mark.parametrize(
    ("name", "work_class"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", WorkClass.GEMM),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_TNT", WorkClass.GEMM),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>(Params)", WorkClass.GEMM),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN_1LDSB0", WorkClass.GEMM),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(float)", WorkClass.GEMM),
        ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64", WorkClass.GEMM),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4> >(Params)", WorkClass.ATTENTION),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::Mainloop> >(Params)", WorkClass.ATTENTION),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob", WorkClass.ATTENTION),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", WorkClass.ATTENTION),
        (
            "void multi_tensor_apply_kernel<ListMetadata<4>, FusedAdamMathFunctor<float, 4> >(int)",
            WorkClass.OPTIMIZER,
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)",
            WorkClass.POINTWISE,
        ),
        ("void oneflow::LayerNormBlock<BlockAllReduce<float> >(int)", WorkClass.POINTWISE),
        ("triton_poi_fused__to_copy_convert_element_type_mul_0", WorkClass.POINTWISE),
        ("void at::native::elementwise_kernel<128, 2, {lambda(int)#1}>(int, {lambda(int)#1})", WorkClass.POINTWISE),
        ("void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float>(float)", WorkClass.SHARD_COPY),
        ("void split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)", WorkClass.SHARD_COPY),
        ("Memcpy HtoD (Pinned -> Device)", WorkClass.COPY),
        ("Memset (Device)", WorkClass.COPY),
    ],
)
def test_work_has_the_class_of_its_kernel(name: str, work_class: WorkClass) -> None:
    assert class_of(name) is work_class


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Kind.COMM),
        ("two_shot_all_reduce_kernel", Kind.COMPUTE),
        ("Memcpy PtoP (Device -> Device)", Kind.MEMORY),
        ("dma_copy", Kind.MEMORY),
        ("void ncclKernel_AllReduce", Kind.COMPUTE),
    ],
)
def test_kinds_follow_the_rule_of_the_reference_values_and_nothing_else(name: str, kind: Kind) -> None:
    assert kind_of(name) is kind


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("nccl:_reduce_scatter_base", Collective.REDUCE_SCATTER),
        ("nccl:all_to_all", Collective.ALL_TO_ALL),
        ("nccl:recv 1<-0", Collective.P2P),
        ("nccl:coalesced", Collective.UNKNOWN),
        ("_allgather_base", Collective.ALL_GATHER),
        ("allreduce", Collective.ALL_REDUCE),
        ("alltoall_base", Collective.ALL_TO_ALL),
        ("c10d::_reduce_scatter_base_", Collective.REDUCE_SCATTER),
        ("c10d::recv_any_source_", Collective.P2P),
        ("c10d::barrier", Collective.OTHER),
    ],
)
def test_arguments_annotations_and_calls_name_their_collective(name: str, collective: Collective) -> None:
    assert collective_of(name) is collective


@pytest.mark.parametrize(
    ("name", "work_class"),
    [
        ("aten::addmm", WorkClass.GEMM),
        ("aten::linear", WorkClass.GEMM),
        ("aten::_scaled_mm", WorkClass.GEMM),
        ("aten::mm", WorkClass.GEMM),
        ("aten::mul", WorkClass.POINTWISE),
        ("aten::linalg_vector_norm", WorkClass.POINTWISE),
        ("aten::scaled_dot_product_attention", WorkClass.ATTENTION),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", WorkClass.ATTENTION),
        ("aten::_fused_adamw_", WorkClass.OPTIMIZER),
        ("aten::layer_norm", WorkClass.POINTWISE),
    ],
)
def test_operations_of_the_cpu_have_classes_too(name: str, work_class: WorkClass) -> None:
    assert class_of_op(name) is work_class
