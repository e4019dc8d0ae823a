"""Compile variants of a program's layouts and compare them; `hlo` analyses the compiled text."""
