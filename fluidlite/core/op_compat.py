"""The table that Fluid 1.8 writes into saved models: since which release which ops mean something else than before."""

from __future__ import annotations

from typing import Final

from fluidlite.core.ir import Program
from fluidlite.proto_gen import framework_pb2 as pb

#: every op that is not named below is as it was in this release
_SINCE: Final = "1.5.0"
_CHANGED_IN: Final = "1.6.0"
_CHANGES: Final[dict[int, str]] = {
    pb.CompatibleInfo.DEFINITELY_NOT: """
        center_loss coalesce_tensor crop_tensor deformable_conv deformable_conv_v1 dpsgd eye fill_any_like
        filter_by_instag gather_nd hard_swish instance_norm lookup_table_v2 match_matrix_tensor multiclass_nms2 one_hot_v2
        prroi_pool pull_box_sparse scatter_nd_add sequence_pad sequence_topk_avg_pooling sequence_unpad shard_index size
        strided_slice trilinear_interp unfold unique unique_with_counts var_conv_2d
    """,
    pb.CompatibleInfo.POSSIBLE: """
        bilinear_interp chunk_eval conditional_block conditional_block_infer conv2d conv2d_transpose conv3d
        conv3d_transpose crf_decoding ctc_align data_norm depthwise_conv2d depthwise_conv2d_transpose edit_distance expand
        fc fused_embedding_seq_pool group_norm hash leaky_relu linear_chain_crf lod_reset matmul mul nearest_interp one_hot
        pow prior_box reshape2 slice uniform_random uniform_random_batch_size_like warpctc
    """,
    pb.CompatibleInfo.BUG_FIX: "layer_norm",
}


def add_compatibility_map(program: Program) -> None:
    """Give a program that is to be saved Fluid's table, if it has none from the file that it came from."""
    kept = pb.ProgramDesc()
    kept.MergeFromString(program.unknown)
    if kept.HasField("op_compatible_map"):
        return
    kept.op_compatible_map.default_required_version = _SINCE
    pairs = sorted((name, change) for change, names in _CHANGES.items() for name in names.split())
    for name, change in pairs:
        pair = kept.op_compatible_map.pair.add(op_name=name)
        pair.compatible_info.version = _CHANGED_IN
        pair.compatible_info.type = change  # type: ignore[assignment]
    program.unknown = kept.SerializePartialToString(deterministic=True)
