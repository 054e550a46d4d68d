"""torch's c10d tests that are run, and the reasons against the rest.

`distributed_test.py` of torch 2.13 has 285 tests. On a host without GPUs, a gloo run of all tests
at 3 ranks passes 112 and skips 173: 133 want GPUs or NCCL, 12 MPI (of which 8 pass here, see
ALL_TO_ALL), 7 want 4 ranks (of which 3 do without GPUs, see FOUR_RANKS), and the rest are switched
off by torch itself. The lists below name the tests passed by gloo; a dlslime run must pass all of
the lists except DENIABLE.
"""

from __future__ import annotations


def _names(text: str) -> list[str]:
    return text.split()


POINT_TO_POINT = _names("""
    test_batch_isend_irecv_gloo test_batch_isend_irecv_gloo_tags
    test_irecv test_isend test_isend_autograd_profiler test_isend_torch_profiler
    test_send_recv test_send_recv_autograd_profiler test_send_recv_torch_profiler
    test_send_recv_any_source test_send_recv_any_source_autograd_profiler
    test_send_recv_any_source_torch_profiler
    test_send_recv_with_tag test_send_recv_with_tag_autograd_profiler
    test_send_recv_with_tag_torch_profiler
""")

GROUPS = _names("""
    test_Backend_enum_class test_get_backend test_get_rank test_get_future
    test_get_rank_size_group test_get_rank_size_full_group
    test_destroy_group test_destroy_full_group
    test_barrier test_barrier_group test_barrier_full_group
    test_barrier_timeout_global test_barrier_timeout_group test_barrier_timeout_full_group
    test_monitored_barrier_gloo test_monitored_barrier_gloo_subgroup
    test_monitored_barrier_gloo_rank_0_timeout test_monitored_barrier_failure_order
    test_monitored_barrier_wait_all_ranks
""")

COLLECTIVES = _names("""
    test_all_gather test_all_gather_complex test_all_gather_group test_all_gather_full_group
    test_all_gather_coalesced_simple test_all_gather_coalesced_complex
    test_all_gather_coalesced_group test_all_gather_coalesced_full_group
    test_all_gather_coalesced_with_empty
    test_all_reduce_sum test_all_reduce_sum_async test_all_reduce_sum_complex
    test_all_reduce_complex_unsupported_ops
    test_all_reduce_product test_all_reduce_min test_all_reduce_max
    test_all_reduce_group_sum test_all_reduce_group_product
    test_all_reduce_group_min test_all_reduce_group_max
    test_all_reduce_full_group_sum test_all_reduce_full_group_product
    test_all_reduce_full_group_min test_all_reduce_full_group_max
    test_all_reduce_coalesced_sum test_all_reduce_coalesced_product
    test_all_reduce_coalesced_min test_all_reduce_coalesced_max
    test_all_reduce_coalesced_max_complex_unsupported
    test_all_reduce_coalesced_group_sum test_all_reduce_coalesced_group_product
    test_all_reduce_coalesced_group_min test_all_reduce_coalesced_group_max
    test_all_reduce_coalesced_full_group_sum test_all_reduce_coalesced_full_group_product
    test_all_reduce_coalesced_full_group_min test_all_reduce_coalesced_full_group_max
    test_sparse_all_reduce_sum
    test_broadcast test_broadcast_group test_broadcast_full_group
    test_gather test_gather_checks test_gather_group test_gather_full_group
    test_reduce_sum test_reduce_sum_twice test_reduce_product test_reduce_min test_reduce_max
    test_reduce_group_sum test_reduce_group_product test_reduce_group_min test_reduce_group_max
    test_reduce_full_group_sum test_reduce_full_group_product
    test_reduce_full_group_min test_reduce_full_group_max
    test_scatter test_scatter_checks test_scatter_complex
    test_scatter_group test_scatter_full_group
""")

OBJECTS = _names("""
    test_all_gather_object_default_pg test_all_gather_object_subgroup test_scatter_object_list
""")

DATA_PARALLEL = _names("""
    test_DistributedDataParallelCPU test_DistributedDataParallelCPU_grad_is_view
    test_DistributedDataParallel_requires_grad
    test_accumulate_gradients_no_sync test_accumulate_gradients_no_sync_grad_is_view
    test_accumulate_gradients_no_sync_allreduce_hook
    test_accumulate_gradients_no_sync_allreduce_with_then_hook
    test_ddp_create_graph test_ddp_logging_data_cpu test_dump_DDP_relevant_env_vars
    test_grads_same_across_ranks_with_no_sync test_static_graph_api_cpu
""")

# Marked as MPI's in torch, and passed by gloo. The remaining 4 tests for MPI call all_to_all with
# tensors of unequal sizes, which gloo refuses.
ALL_TO_ALL = _names("""
    test_all_to_all_single_equal_split test_all_to_all_single_equal_split_complex
    test_all_to_all_single_equal_split_group test_all_to_all_single_equal_split_full_group
    test_all_to_all_single_unequal_split test_all_to_all_single_unequal_split_complex
    test_all_to_all_single_unequal_split_group test_all_to_all_single_unequal_split_full_group
""")

# Refuse any other number of ranks.
FOUR_RANKS = _names("""
    test_gather_object test_gather_object_subgroup test_new_subgroups_with_group_param
""")

# From a test's name to the feature that torch denies third-party backends, up to torch 2.13;
# programs/torch_probe.py asks torch for the reason.
DENIABLE = {
    name: "monitored_barrier" for name in GROUPS if name.startswith("test_monitored_barrier")
} | {"test_ddp_logging_data_cpu": "ddp_logger"}
