"""What both ends of a call agree on."""

# A canvas may have 16 MiB.
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
# Failures carry up to 4 KiB of the value that was in the way, in base64 in a trailer.
MAX_METADATA_BYTES = 32 * 1024

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
