"""Turn the user's input (text, files, dumps, protos, profiles, JAX objects) into a sequence of HLO texts."""
