"""The command line: arguments, progress and messages. The work is done below."""
