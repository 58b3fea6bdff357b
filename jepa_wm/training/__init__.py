"""Training a small LeWM: data, losses, loop, export."""
