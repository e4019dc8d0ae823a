"""The asv suite of fastindex, and `table.py`, which measures every case beside every installed rival."""
