"""SpecModel: measure candidates for serving an LLM with speculative decoding, then serve the best."""

__version__ = "0.1.0"
