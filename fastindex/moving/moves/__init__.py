"""Ways to move: in each folder the plan, the numbers that plan and kernel agree on, and the kernel."""
