"""Jobs on files: index conversion, pack, unpack and relayout. Nothing here knows the command line."""
