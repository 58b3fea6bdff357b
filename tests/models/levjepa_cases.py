"""The cases of golden/levjepa.npz."""

D = 40  # two heads of 20: RoPE segments of 6, whose half is odd, two lanes unturned
CLIPS = {  # name -> (model, [B,T,C,h,w])
    "native": ("frames", (1, 4, 3, 24, 24)),
    "wide and longer": ("frames", (1, 5, 3, 16, 32)),
    "one frame": ("frames", (2, 1, 3, 24, 24)),
    "full": ("full", (1, 4, 3, 24, 24)),
    "tubelets": ("tubelets", (1, 5, 3, 24, 16)),
}
