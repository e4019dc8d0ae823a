"""From shapes to index programs and relayout plans: numbers only, and no compiler."""
