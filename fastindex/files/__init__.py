"""The same jobs on files. Nothing here knows the command line."""
