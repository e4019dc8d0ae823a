"""What a layout costs, what it is called and what would be better, in words and numbers; no array data."""
