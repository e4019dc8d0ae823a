"""Other libraries' arrays and layouts as plain data; no `Shape` may appear here."""
