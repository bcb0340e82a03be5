"""Beam search: `beam_search`, `beam_search_decode`, `gather_tree`, and the array of a loop as one tensor."""

from __future__ import annotations

from fluidlite.framework import Variable
from fluidlite.layer_helper import LayerHelper, require_dtype, require_variable
from fluidlite.layers.control_flow import require_array


def beam_search(
    pre_ids: Variable,
    pre_scores: Variable,
    ids: Variable | None,
    scores: Variable,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> tuple[Variable, ...]:
    """(ids, scores) of the ``beam_size`` best continuations of each source sentence, and with ``return_parent_idx`` which
    prefix each continues.

    ``pre_ids`` and ``pre_scores`` [prefixes, 1] are what was selected before; ``ids`` and ``scores`` [prefixes, k] continue
    them, ``scores`` with a LoD whose ``level`` groups the prefixes of a sentence.
    """
    require_dtype("beam_search", require_variable("beam_search", "pre_ids", pre_ids), ("int64",))
    helper = LayerHelper("beam_search", name)
    selected_scores = helper.create_variable_for_type_inference(pre_scores.dtype)
    selected_ids = helper.create_variable_for_type_inference(pre_ids.dtype)
    parents = helper.create_variable_for_type_inference("int32")
    helper.append_op(
        "beam_search",
        {"pre_ids": pre_ids, "pre_scores": pre_scores, "scores": scores, "ids": ids},
        {"selected_ids": selected_ids, "selected_scores": selected_scores, "parent_idx": parents},
        {"level": level, "beam_size": beam_size, "end_id": end_id, "is_accumulated": is_accumulated},
    )
    return (selected_ids, selected_scores, parents) if return_parent_idx else (selected_ids, selected_scores)


def beam_search_decode(
    ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None
) -> tuple[Variable, Variable]:
    """(words, scores) of the sentences that the steps of a beam search made, from the arrays of what each step selected.

    LoD level 0 holds the hypotheses of each source sentence, the best first, level 1 the words of each.
    """
    helper = LayerHelper("beam_search_decode", name)
    words = helper.create_variable_for_type_inference(ids.dtype)
    points = helper.create_variable_for_type_inference(scores.dtype)
    outputs = {"SentenceIds": words, "SentenceScores": points}
    helper.append_op(
        "beam_search_decode", {"Ids": ids, "Scores": scores}, outputs, {"beam_size": beam_size, "end_id": end_id}
    )
    return words, points


def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """[steps, batch, beam]: the words of each beam of the last step, followed back by ``parents`` through ``ids``."""
    require_dtype("gather_tree", require_variable("gather_tree", "ids", ids), ("int32", "int64"))
    return LayerHelper("gather_tree").one("gather_tree", {"Ids": ids, "Parents": parents}, dtype=ids.dtype)


def tensor_array_to_tensor(
    input: Variable, axis: int = 1, name: str | None = None, use_stack: bool = False
) -> tuple[Variable, Variable]:
    """(entries of an array concatenated, or stacked, along ``axis``; their sizes there, int32)."""
    require_array("tensor_array_to_tensor", input)
    helper = LayerHelper("tensor_array_to_tensor", name)
    out = helper.create_variable_for_type_inference(input.dtype)
    sizes = helper.create_variable_for_type_inference("int32")
    attrs = {"axis": axis, "use_stack": use_stack}
    helper.append_op("tensor_array_to_tensor", {"X": input}, {"Out": out, "OutIndex": sizes}, attrs)
    return out, sizes
