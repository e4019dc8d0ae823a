"""The command line: arguments, progress and messages. Lower layers do the work."""
