"""Attention maps are the weights the last block really used."""

import pytest
import torch

from jepa_wm.models import load
from jepa_wm.models.attention import attention
from jepa_wm.models.maps import cls_attention

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", ["lewm", "hfvit"])
def test_the_weights_are_those_of_the_last_block(family, tiny):
    model = load(tiny(family), CPU)
    pixels = torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    weights = cls_attention(model, pixels)
    block, seen = model.enc.blk[-1], []
    handle = block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.encode(pixels)
    handle.remove()
    q, k, v = block.project(seen[0])
    prefix, patch = model.enc.config.prefix, model.enc.config.patch_size
    assert weights.shape == (3, block.n_head, 16 // patch, 24 // patch)
    # what CLS gathers is the patches' values in these weights, and the prefix's in the rest
    scores = (q[:, :, :1] @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
    gathered = weights.flatten(2).unsqueeze(2) @ v[:, :, prefix:]
    gathered = gathered + scores[..., :prefix] @ v[:, :, :prefix]
    torch.testing.assert_close(gathered, attention(q, k, v)[:, :, :1], rtol=1e-4, atol=1e-5)
    assert not block._forward_pre_hooks  # nothing is left behind


def test_without_a_cls_token_there_is_none(tiny):
    with pytest.raises(ValueError, match="CLS token"):
        cls_attention(load(tiny("ijepa"), CPU), torch.zeros(1, 3, 16, 16))
