"""Names of Fluid's layers that fluidlite leaves out on purpose, with the reason; asking for one raises NotSupported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fluidlite.errors import NotSupported

_DETECTION: Final = "object detection is no task of a parameter-server trainer"


def _each(names: Iterable[str], reason: str) -> dict[str, str]:
    return dict.fromkeys(names, reason)


#: name -> why
LEFT_OUT: Final[Mapping[str, str]] = {
    **_each(
        (
            "anchor_generator",
            "bipartite_match",
            "box_clip",
            "box_coder",
            "box_decoder_and_assign",
            "collect_fpn_proposals",
            "deformable_conv",
            "deformable_roi_pooling",
            "density_prior_box",
            "detection_output",
            "distribute_fpn_proposals",
            "generate_mask_labels",
            "generate_proposal_labels",
            "generate_proposals",
            "iou_similarity",
            "locality_aware_nms",
            "matrix_nms",
            "multi_box_head",
            "multiclass_nms",
            "polygon_box_transform",
            "prior_box",
            "prroi_pool",
            "psroi_pool",
            "retinanet_detection_output",
            "retinanet_target_assign",
            "roi_align",
            "roi_perspective_transform",
            "roi_pool",
            "rpn_target_assign",
            "ssd_loss",
            "target_assign",
            "yolo_box",
            "yolov3_loss",
        ),
        _DETECTION,
    ),
    "inplace_abn": "it saves memory of a GPU; use batch_norm with act",
}


def refuse(module: str, name: str, table: Mapping[str, str]) -> Exception:
    """What a module raises for a name that it does not have: NotSupported for one of ``table``, else AttributeError."""
    reason = table.get(name)
    if reason is not None:
        return NotSupported(f"fluid.{module}.{name} is not supported: {reason}")
    return AttributeError(f"module 'fluidlite.{module}' has no attribute {name!r}")
