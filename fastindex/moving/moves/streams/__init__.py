"""Sequential streams: copies of runs, interleaves and deinterleaves, packed runs."""
