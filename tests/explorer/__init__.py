"""Tests of the live page."""
