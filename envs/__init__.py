"""Environments of ``jepa_wm``: Gymnasium envs that know nothing of the rest of the package."""
