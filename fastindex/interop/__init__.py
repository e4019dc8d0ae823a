"""Other libraries' arrays and layouts as plain data. It knows no `Shape` and builds none."""
