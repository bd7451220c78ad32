"""Parts that no other wheel may import."""
