"""What can be wrong with a session of presence."""

from servicekit.errors import Invalid


class SessionIdReused(Invalid):
    """A socket joins under the id of one that is still there."""

    reason = "presence_session_id_reused"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"The session {session_id!r} is already there.", session_id=session_id)


class SessionUnknown(Invalid):
    """Something is said of a socket that has not joined."""

    reason = "presence_session_unknown"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"The session {session_id!r} has not joined.", session_id=session_id)
