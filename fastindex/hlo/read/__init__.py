"""From what a user has (text, files, dumps, protos, profiles, JAX's objects) to texts of HLO, one after the other."""
