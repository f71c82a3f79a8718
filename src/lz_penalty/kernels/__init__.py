"""The backends: one file each, one `apply` each, importing only its own array library.

They never validate and never fall back: `lz_penalty.ops` has checked everything and chosen. All of them write
`min(logit, original + strength * bits)` for every occurrence in the window, so that the smallest value of a token
wins without a table over the vocabulary: adjustments are never positive, so the minimum is the definition's.

    apply(logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, packed, vocab_size)
"""
