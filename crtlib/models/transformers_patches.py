"""What is changed inside of ``transformers`` while it runs."""

from __future__ import annotations

import functools


@functools.cache
def skip_packing_check() -> None:
    """Make ``transformers`` believe positions that are marked as those of one text per row. It
    would look for itself otherwise, and so wait for the GPU."""
    from transformers import masking_utils

    find_indices = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: (
        None if hasattr(position_ids, "unpacked") else find_indices(position_ids)
    )
