"""taskmq on PostgreSQL."""
