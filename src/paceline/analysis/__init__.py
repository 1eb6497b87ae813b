"""Records ─► values: pure functions, no files, no printing."""
