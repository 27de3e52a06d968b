"""What two services need and no service owns."""

import os

# Before grpc is loaded, which reads it once (docs/decisions/0002).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
