"""The cases of golden/vjepa2_1.npz: what is encoded and predicted."""

D = 40  # two heads of 20: RoPE segments of 6, two lanes unturned
CLIPS = {  # name -> (model, [B,T,C,h,w])
    "native": ("encoder", (1, 4, 3, 64, 64)),
    "tall and longer": ("encoder", (1, 6, 3, 64, 32)),
    "larger": ("encoder", (1, 2, 3, 80, 96)),
    "odd frames": ("encoder", (1, 3, 3, 32, 48)),
    "picture": ("encoder", (2, 1, 3, 32, 64)),
    "picture, wide": ("encoder", (1, 1, 3, 48, 80)),
    "patch 14": ("patch14", (1, 4, 3, 56, 42)),
}
LEVELS = (1, 2, 3, 48, 48)  # the clip whose four levels are kept
KEPT = [3, 30, 17, 8, 5]  # patches of the native clip that are encoded alone
CONTEXT = [0, 18, 7, 30, 21]
TARGETS = {"video": [40, 1, 31, 66], "image": [12, 2]}  # unordered, beyond the clip of 32
PREDICTIONS = {  # name -> (predictor, kind, mask token)
    "one, token 0": ("one", "video", 0),
    "one, token 1": ("one", "video", 1),
    "one, token 5": ("one", "video", 5),  # of three: the last
    "one, picture": ("one", "image", 1),
    "four, token 0": ("four", "video", 0),
    "four, picture": ("four", "image", 2),
}
