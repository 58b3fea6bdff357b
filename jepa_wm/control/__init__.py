"""The closed loop: everything between a latent and an action."""
