"""Scales for int8 weights: what is measured, the rule, and what they are worth on a model with loud features.

Shape suffixes: T tokens, I input features, E hidden width.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from models.decoder import Decoder
from models.linear import WeightKind, has_packed_kinds
from models.smoothing import EXPONENT, STEPS_PER_OCTAVE, calibrate_input_scales, smoothing_scale
from tests.support.tiny_decoders import REFERENCES, StateDictCheckpoint, llama

pytestmark = [
    pytest.mark.skipif(not has_packed_kinds(torch.device("cpu")), reason="int8 kernels need an x86-64 CPU"),
    pytest.mark.usefixtures("one_thread"),
]

LOUD_FEATURE = 5
AFTER_A_NORM = tuple(f"{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"))


def token_ids(count: int = 150, *, seed: int = 3) -> list[int]:
    return torch.randint(211, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def with_a_loud_feature(times: float = 40.0) -> StateDictCheckpoint:
    """The tiny llama, whose norms make one feature far louder than all others, as those of trained models do."""
    checkpoint = llama().checkpoint
    tensors = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()}
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensor[LOUD_FEATURE] *= times
        elif name.endswith(AFTER_A_NORM):
            tensor[:, LOUD_FEATURE] /= times
    return dataclasses.replace(checkpoint, tensors=tensors)


def rms_norm(hidden_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    return hidden_TE / (hidden_TE.square().mean(dim=1, keepdim=True) + eps).sqrt() * weight_E


def logits(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    return decoder.forward(torch.tensor(ids), decoder.new_cache(len(ids)), num_logits=len(ids))


def test_the_rule_by_hand() -> None:
    # 16^0.5 / 4^0.5 = 2 and 1^0.5 / 4^0.5 = 1/2: their geometric mean is 1 already.
    scale_I = smoothing_scale(torch.tensor([16.0, 1.0]), torch.tensor([4.0, 4.0]), exponent=0.5)
    assert scale_I.tolist() == [2.0, 0.5]
    # Exponent 1 follows the inputs alone, exponent 0 the weights alone.
    assert smoothing_scale(torch.tensor([64.0, 1.0]), torch.tensor([1.0, 9.0]), exponent=1).tolist() == [8.0, 0.125]
    assert smoothing_scale(torch.tensor([9.0, 1.0]), torch.tensor([64.0, 1.0]), exponent=0).tolist() == [0.125, 8.0]


def test_scales_come_in_steps_and_forget_last_bits() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs_I, weights_I = (torch.rand(500, generator=generator).exp2() for _ in range(2))
    scale_I = smoothing_scale(inputs_I, weights_I, exponent=0.5)
    steps_I = scale_I.double().log2() * STEPS_PER_OCTAVE
    torch.testing.assert_close(steps_I, steps_I.round(), rtol=0, atol=1e-5)
    nudged_I = smoothing_scale(inputs_I * (1 + 1e-6), weights_I, exponent=0.5)
    assert (scale_I != nudged_I).sum() <= 1


@pytest.mark.parametrize("odd", [0.0, float("inf"), float("nan")])
def test_odd_magnitudes_give_usable_scales(odd: float) -> None:
    inputs_I = torch.tensor([odd, 1.0, 4.0, 0.25])
    for scale_I in (
        smoothing_scale(inputs_I, torch.ones(4), exponent=0.5),
        smoothing_scale(torch.ones(4), inputs_I, exponent=0.5),
        smoothing_scale(torch.full((4,), odd), torch.ones(4), exponent=0.5),
    ):
        assert scale_I.dtype == torch.float32
        assert scale_I.isfinite().all()
        assert (scale_I > 0).all()


def test_what_is_measured_is_the_input_of_the_first_matrix() -> None:
    """The first layer's input can be computed from the embedding and the norm alone."""
    checkpoint = llama().checkpoint
    first, second = token_ids(150), token_ids(3, seed=9)
    scales = calibrate_input_scales(checkpoint, [first, second])
    embedded_TE = checkpoint.tensor("model.embed_tokens.weight").half().float()[first + second]
    norm_E = checkpoint.tensor("model.layers.0.input_layernorm.weight")
    inputs_TE = rms_norm(embedded_TE, norm_E, checkpoint.config.rms_norm_eps)
    names = ("q_proj", "k_proj", "v_proj")
    stacked_OE = torch.cat([checkpoint.tensor(f"model.layers.0.self_attn.{name}.weight") for name in names])
    expected_E = smoothing_scale(inputs_TE.abs().amax(0), stacked_OE.abs().amax(0), exponent=EXPONENT)
    assert torch.equal(scales["layers.0.qkv"], expected_E)


def test_every_token_is_measured_and_no_padding() -> None:
    """A token that stands once, last and alone in its block, decides its loudest feature; padding, id 0, does not."""
    checkpoint = llama().checkpoint
    tensors = dict(checkpoint.tensors)
    embedding_VE = tensors["model.embed_tokens.weight"].clone()
    embedding_VE[200] = 0
    embedding_VE[200, 7] = 5
    embedding_VE[0] = 0
    embedding_VE[0, 11] = 5
    tensors["model.embed_tokens.weight"] = embedding_VE
    checkpoint = dataclasses.replace(checkpoint, tensors=tensors)
    common = [1 + token_id % 190 for token_id in token_ids(64)]
    without, with_last, with_zero = (
        calibrate_input_scales(checkpoint, [common + rest])["layers.0.qkv"] for rest in ([], [200], [0])
    )
    assert with_last[7] > without[7]
    assert with_zero[11] > without[11]
    assert with_last[11] <= without[11]


@pytest.mark.parametrize("name", REFERENCES)
def test_every_family_can_be_measured(name: str) -> None:
    checkpoint = REFERENCES[name]().checkpoint
    scales = calibrate_input_scales(checkpoint, [token_ids()])
    layers = range(checkpoint.config.num_layers)
    assert scales.keys() == {f"layers.{index}.{part}" for index in layers for part in ("qkv", "gate_up")} | {"head"}
    ids = token_ids(40, seed=8)
    plain_TV = logits(Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32), ids)
    scaled_TV = logits(Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32, input_scales=scales), ids)
    torch.testing.assert_close(scaled_TV, plain_TV, rtol=1e-4, atol=1e-4)


def test_scales_bring_int8_nearer_to_float32() -> None:
    checkpoint = with_a_loud_feature()
    ids = token_ids(100, seed=8)
    exact_TV = logits(Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32), ids)
    scales = calibrate_input_scales(checkpoint, [token_ids()])
    plain, scaled = (
        Decoder.from_checkpoint(checkpoint, weights=WeightKind.INT8, input_scales=given) for given in (None, scales)
    )
    assert (logits(scaled, ids) - exact_TV).norm() < 0.5 * (logits(plain, ids) - exact_TV).norm()


def test_scaled_int8_rows_do_not_depend_on_the_width() -> None:
    checkpoint = with_a_loud_feature()
    scales = calibrate_input_scales(checkpoint, [token_ids()])
    decoder = Decoder.from_checkpoint(checkpoint, weights=WeightKind.INT8, input_scales=scales)
    ids = token_ids(90, seed=8)
    together_TV = logits(decoder, ids)
    cache = decoder.new_cache(len(ids))
    for block_T in torch.tensor(ids).split([1, 2, 3, 5, 8, 13, 17, 40, 1]):
        first = cache.length
        rows_TV = decoder.forward(block_T, cache, num_logits=len(block_T))
        assert torch.equal(rows_TV, together_TV[first : first + len(block_T)])


def test_ids_and_lengths_beyond_the_model_are_left_out() -> None:
    checkpoint = llama().checkpoint
    short = dataclasses.replace(checkpoint, config=dataclasses.replace(checkpoint.config, context_length=20))
    ids = token_ids()
    cut = calibrate_input_scales(checkpoint, [ids[:20]])
    padded = [token_id for known in ids for token_id in (known, 211, -1)]
    for found in (calibrate_input_scales(short, [padded]), calibrate_input_scales(checkpoint, [ids[:20], [211], []])):
        assert all(torch.equal(found[key], cut[key]) for key in cut)


def test_nothing_to_read_gives_no_scales() -> None:
    assert calibrate_input_scales(llama().checkpoint, []) == {}
    assert calibrate_input_scales(llama().checkpoint, [[], [211]]) == {}


@pytest.mark.parametrize("exponent", [-0.1, 1.1, float("nan")])
def test_an_exponent_out_of_range_is_refused(exponent: float) -> None:
    with pytest.raises(ValueError, match="exponent must be within 0 and 1"):
        calibrate_input_scales(llama().checkpoint, [token_ids()], exponent=exponent)
