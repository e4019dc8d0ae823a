"""Strided elements one by one, and slots that are looked up."""
