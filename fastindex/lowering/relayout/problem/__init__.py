"""What a relayout has to move: loops, digits and slots of both sides; nothing of how it is moved."""
