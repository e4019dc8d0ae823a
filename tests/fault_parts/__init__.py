"""The parts of `tests/faults.py`: each breaks one thing at random for as long as told, and counts. No tests in here."""
