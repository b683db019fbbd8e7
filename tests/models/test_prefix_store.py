"""The store of prefixes forgets: neither their number nor their bytes grow with the samples."""

from __future__ import annotations

import numpy as np
import torch

from mmprobe.models.reading import MOST_PREFIXES, Prefix, PrefixStore


def prefix(n_tokens: int) -> Prefix:
    keys = [torch.zeros(1, 2, n_tokens, 8) for _ in range(3)]
    return Prefix(np.zeros(n_tokens, np.int32), keys, [each.clone() for each in keys], None, None)


def test_the_number_of_kept_prefixes_is_bounded(random_qwen):
    store = PrefixStore(random_qwen, frozenset(), keeps_states=False)
    for number in range(10 * MOST_PREFIXES):
        store._keep((number,), prefix(4))
        assert len(store.prefixes) <= MOST_PREFIXES
    assert list(store.prefixes) == [(number,) for number in range(9 * MOST_PREFIXES, 10 * MOST_PREFIXES)]


def test_the_bytes_of_kept_prefixes_are_bounded(random_qwen):
    most = 3 * prefix(50).nbytes
    store = PrefixStore(random_qwen, frozenset(), keeps_states=False, max_bytes=most)
    for number in range(20):
        store._keep((number,), prefix(20 + number))
        assert sum(each.nbytes for each in store.prefixes.values()) <= most
    assert (19,) in store.prefixes and len(store.prefixes) > 1
