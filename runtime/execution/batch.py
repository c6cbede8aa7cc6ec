"""The step as tensors, by its executor's name. The layout itself lives beside the models that read it."""

from ramet.runtime.models.batch import KVPool, StepBatch

__all__ = ["KVPool", "StepBatch"]
