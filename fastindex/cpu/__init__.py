"""Runs programs and plans on processors. It decides neither what moves nor what is allowed."""
