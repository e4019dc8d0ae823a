"""Layouts in words, numbers and pictures: explanations, advice, names, SVG, text, pages and the live page."""
