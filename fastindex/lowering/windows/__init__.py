"""Windows of arrays: their programs and their runs in memory; nothing that moves data."""
