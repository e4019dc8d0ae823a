"""Tests, in a folder for each folder of the package."""
