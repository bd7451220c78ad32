"""The transport `memory://`: jobs kept in this process."""

from taskmq.transport.memory.transport import MAX_FINISHED_JOBS, MemoryTransport

__all__ = ["MAX_FINISHED_JOBS", "MemoryTransport"]
