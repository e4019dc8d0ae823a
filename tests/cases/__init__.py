"""What tests run on: random shapes, texts, nests, and lists of cases."""
