"""Raw fetching from one broker: incremental fetch sessions (KIP-227) and full fetches, batches left as views.

A session answers only for partitions that changed, so an idle estate costs next to nothing. A full fetch
(`full=True`) belongs to no session and answers for every partition it names (AL-76).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kmigrate.cluster.client import ClusterClient
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import (
    FETCH,
    FETCH_VERSION,
    FetchAnswer,
    FetchedPartition,
    FetchPartition,
    decode_fetch,
    encode_fetch,
)

__all__ = ["FetchSession", "fetch_full", "fetch_one"]

_SESSION_ERRORS = frozenset({Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH})
_MAX_EPOCH = (1 << 31) - 1

Key = tuple[str, int]


class FetchSession:
    """One reader's fetches to one broker, one at a time, over a connection of their own."""

    def __init__(self, client: ClusterClient, node: int, purpose: str, *, max_bytes: int) -> None:
        self._client = client
        self._node = node
        self._purpose = purpose
        self.max_bytes = max_bytes
        self._connection: object = None
        self._forget()

    def _forget(self) -> None:
        self._session = 0
        self._epoch = 0
        self._known: dict[Key, FetchPartition] = {}

    async def fetch(self, wanted: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        """One Fetch; raises Unreachable. A session that the broker dropped is opened anew by the next call."""
        connection = await self._client.connection(self._node, self._purpose)
        if connection is not self._connection:
            self._connection = connection
            self._forget()
        if full:
            self._forget()
            send, dropped, session, epoch = list(wanted.values()), [], 0, -1
        else:
            known = self._known
            # The very same value is the rule among many partitions, and looked at first since comparing is dear.
            send = [p for key, p in wanted.items() if (k := known.get(key)) is not p and k != p]
            dropped = [key for key in self._known if key not in wanted]
            session, epoch = self._session, self._epoch
        try:
            frame = await connection.call_raw(
                FETCH,
                FETCH_VERSION,
                encode_fetch(
                    send,
                    max_wait_ms=max_wait_ms,
                    max_bytes=self.max_bytes,
                    read_committed=True,
                    session_id=session,
                    session_epoch=epoch,
                    forgotten=dropped,
                ),
                flexible=True,
                timeout=max_wait_ms / 1000 + self._client.settings.request_timeout_s,
            )
        except BaseException:
            self._forget()
            raise
        answer = decode_fetch(frame)
        if answer.error in _SESSION_ERRORS or not answer.session_id:
            self._forget()
        elif not full:
            self._session = answer.session_id
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
            self._known = dict(wanted)
        return answer


async def fetch_full(
    client: ClusterClient,
    node: int,
    parts: Sequence[FetchPartition],
    *,
    purpose: str,
    read_committed: bool = False,
    max_wait_ms: int = 100,
    max_bytes: int = 64 << 20,
) -> FetchAnswer:
    """One fetch that belongs to no session."""
    connection = await client.connection(node, purpose)
    frame = await connection.call_raw(
        FETCH,
        FETCH_VERSION,
        encode_fetch(parts, max_wait_ms=max_wait_ms, max_bytes=max_bytes, read_committed=read_committed),
        flexible=True,
    )
    return decode_fetch(frame)


async def fetch_one(
    client: ClusterClient,
    node: int,
    part: FetchPartition,
    *,
    purpose: str,
    read_committed: bool = False,
    max_wait_ms: int = 100,
) -> FetchedPartition:
    """One partition's answer to one full fetch."""
    answer = await fetch_full(
        client, node, [part], purpose=purpose, read_committed=read_committed, max_wait_ms=max_wait_ms
    )
    return answer.partitions[0]
