"""The live page on the loopback address. What it shows is made in the folders below; no files are served."""
