"""Training: phases, clipping, noise, the loop."""
