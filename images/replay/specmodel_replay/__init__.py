"""A stand-in for vLLM that runs no model: it replays measured timings behind vLLM's own command line and HTTP API.

It exists so that a cluster without GPUs can rehearse everything an operator does with an engine. It must
never be taken for an engine: whatever it answers says so (`/version`, `owned_by`, the `x-specmodel-engine`
header, the start-up log).
"""

__version__ = "0.1.0"

ENGINE_NAME = "replay"
# The vLLM release whose measured timings and metric names are replayed.
VLLM_VERSION = "0.25.1"
