"""Only where TURNPOINT_VLLM names the interpreter of an environment with vLLM: see `make test-vllm`."""

import os

collect_ignore_glob = [] if os.environ.get("TURNPOINT_VLLM") else ["test_*.py"]
