"""The live page on the loopback address. What it shows is made in the folders below; nothing of the disk is served."""
