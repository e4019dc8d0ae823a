"""HLO text to report. It reads text and never compiles or runs a module."""
