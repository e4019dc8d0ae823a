"""What a layout costs, is called, and should be, in words and numbers. No data."""
