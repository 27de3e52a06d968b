"""The JSON text frames that tell windows of commits, each made once for all that get it."""

import json
from collections.abc import Iterator

from services.presence.domain.audience import News
from services.presence.domain.versions import Version


def invalidations(news: News, revision: int) -> Iterator[bytes]:
    """The frames that tell what was committed, in a room that is at `revision` (PR10)."""
    if news.version is not None:
        yield _invalidate(news.version)
    # Who can apply the operations asks for nothing, and would not hear of the leases.
    if news.leases_changed and (news.version is None or news.version.operations is not None):
        yield _invalidate(Version(revision))


def _invalidate(version: Version) -> bytes:
    members: dict[str, object] = {"type": "invalidate", "revision": version.revision}
    if version.content_hash:
        members["contentHash"] = version.content_hash
    if version.operations is None:
        return _frame(members)
    if version.mutation_id:
        members["mutationId"] = version.mutation_id
    head = _frame({**members, "baseRevision": version.base_revision})
    return b'%s,"operations":%s}' % (head[:-1], version.operations)


def _frame(members: dict[str, object]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
