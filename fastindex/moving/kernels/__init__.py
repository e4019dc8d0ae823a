"""The kernels that run passes, and subroutines that moves share."""
