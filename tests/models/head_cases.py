"""The cases of golden/heads_*.npz: what the authors' probes are fed."""

D, CLASSES = 32, 7
PROBES = {  # name -> (heads, depth)
    "vjepa2": (16, 3),
    "vjepa": (4, 1),
}
TOKENS = {  # name -> ([B,N,D], scale); faint tokens make the norm's epsilon count
    "several": ((2, 21, D), 1.0),
    "one": ((2, 1, D), 1.0),
    "faint": ((2, 9, D), 3e-3),
}
