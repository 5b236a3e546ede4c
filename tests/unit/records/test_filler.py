"""Filler batches hold exactly the announced records, whichever way the batches are put together."""

from __future__ import annotations

import cramjam
import pytest

from kmigrate.protocol.primitives import zigzag
from kmigrate.records.batch import HEADER_SIZE, check_crc, walk
from kmigrate.records.build import filler_batch


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8_191, 8_192, 8_193, 70_000])
def test_a_filler_of_n_offsets_holds_n_empty_records(count: int) -> None:
    data = memoryview(filler_batch(count, timestamp=5, producer_id=7, epoch=0, sequence=9))
    (batch,) = walk(data)
    assert (batch.count, batch.last_offset_delta, batch.base_sequence) == (count, count - 1, 9)
    assert check_crc(batch.view)
    records = bytearray()
    for delta in range(count):
        body = b"\0" + zigzag(0) + zigzag(delta) + zigzag(-1) + zigzag(-1) + zigzag(0)
        records += zigzag(len(body)) + body
    assert bytes(cramjam.zstd.decompress(bytes(batch.view[HEADER_SIZE:]))) == records
