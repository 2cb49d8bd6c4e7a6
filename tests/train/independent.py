"""The drafter, the LiLiCorr head and the greedy walk a second time: float64 numpy, one loop per slot, head and candidate.

Written from the published description of the two models alone and before the code under test was read. It is slow on
purpose: every sum is over named indices. Weights are dicts of numpy arrays under the published tensor names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Weights = dict[str, np.ndarray]


@dataclass
class DrafterShape:
    """What the drafter's tensors do not say themselves."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    causal: bool = False
    windows: dict[int, int] = field(default_factory=dict)  # layer -> window, for sliding layers only
    conv_taps: int = 0
    conv_group: int = 0


def rms_norm(vector: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    mean_square = sum(float(v) * float(v) for v in vector) / len(vector)
    return np.array([v / np.sqrt(mean_square + eps) * w for v, w in zip(vector, weight, strict=True)])


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    y = weights[f"{name}.weight"] @ x
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    powers = [np.exp(s - top) for s in scores]
    return [p / sum(powers) for p in powers]


def rotate(vector: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Rotary embedding of one head: pairs (i, i + D/2) turn by position · theta^(-2i/D)."""
    half = len(vector) // 2
    out = np.zeros_like(vector)
    for i in range(half):
        angle = position * theta ** (-2.0 * i / len(vector))
        a, b = vector[i], vector[i + half]
        out[i] = a * np.cos(angle) - b * np.sin(angle)
        out[i + half] = b * np.cos(angle) + a * np.sin(angle)
    return out


def convolve(rows: list[np.ndarray], base: np.ndarray, deltas: list[np.ndarray], group: int) -> list[np.ndarray]:
    """One side of the grouped dynamic convolution of one block; base (taps, H), deltas per row (taps, H/group)."""
    taps, width = base.shape
    out = []
    for i in range(len(rows)):
        y = np.zeros(width)
        for t in range(taps):
            if i - t >= 0:
                for channel in range(width):
                    y[channel] += (base[t, channel] + deltas[i][t, channel // group]) * rows[i - t][channel]
        out.append(y)
    return out


def conv_coefficients(weights: Weights, name: str, rows: list[np.ndarray], shape: DrafterShape) -> list[np.ndarray]:
    """Per row the (2, taps, H/group) kernel changes, predicted from the sublayer's normed input."""
    groups = len(rows[0]) // shape.conv_group
    return [(weights[f"{name}.kernel_projection.weight"] @ x).reshape(2, shape.conv_taps, groups) for x in rows]


def block_hidden(weights: Weights, shape: DrafterShape, block: np.ndarray, features: np.ndarray) -> np.ndarray:
    """One block (B,H) after context features (C,F·H) at positions 0…C-1; returns the final hidden (B,H)."""
    context = [rms_norm(weights["fc.weight"] @ row, weights["hidden_norm.weight"], shape.rms_eps) for row in features]
    x = [row.astype(np.float64) for row in block]
    for layer in range(shape.layers):
        prefix = f"layers.{layer}"
        for kind, norm in (("attention", "input_layernorm"), ("mlp", "post_attention_layernorm")):
            inner = [rms_norm(row, weights[f"{prefix}.{norm}.weight"], shape.rms_eps) for row in x]
            if shape.conv_taps:
                conv = f"{prefix}.{kind}_conv"
                change = conv_coefficients(weights, conv, inner, shape)
                base = weights[f"{conv}.base_kernel"]
                inner = convolve(inner, base[0], [c[0] for c in change], shape.conv_group)
            if kind == "attention":
                y = attention(weights, shape, layer, context, inner)
            else:
                y = [
                    linear(
                        weights,
                        f"{prefix}.mlp.down_proj",
                        silu(linear(weights, f"{prefix}.mlp.gate_proj", row))
                        * linear(weights, f"{prefix}.mlp.up_proj", row),
                    )
                    for row in inner
                ]
            if shape.conv_taps:
                y = convolve(y, base[1], [c[1] for c in change], shape.conv_group)
            x = [a + b for a, b in zip(x, y, strict=True)]
    return np.stack([rms_norm(row, weights["norm.weight"], shape.rms_eps) for row in x])


def attention(
    weights: Weights, shape: DrafterShape, layer: int, context: list[np.ndarray], block: list[np.ndarray]
) -> list[np.ndarray]:
    """Every block row looks at the context rows and at the block; a sliding layer forgets old context rows only."""
    name, dim, start = f"layers.{layer}.self_attn", shape.head_dim, len(context)
    keys, values = [], []  # [position][kv head]
    for position, row in enumerate(context + block):
        k = linear(weights, f"{name}.k_proj", row).reshape(shape.kv_heads, dim)
        values.append(linear(weights, f"{name}.v_proj", row).reshape(shape.kv_heads, dim))
        keys.append(
            [
                rotate(rms_norm(k[h], weights[f"{name}.k_norm.weight"], shape.rms_eps), position, shape.rope_theta)
                for h in range(shape.kv_heads)
            ]
        )
    out = []
    for slot, row in enumerate(block):
        q = linear(weights, f"{name}.q_proj", row).reshape(shape.heads, dim)
        visible = []
        for position in range(start + len(block)):
            if position < start:
                seen = layer not in shape.windows or position > start + slot - shape.windows[layer]
            else:
                seen = not shape.causal or position <= start + slot
            if seen:
                visible.append(position)
        heads = []
        for h in range(shape.heads):
            kv = h // (shape.heads // shape.kv_heads)
            query = rotate(
                rms_norm(q[h], weights[f"{name}.q_norm.weight"], shape.rms_eps), start + slot, shape.rope_theta
            )
            shares = softmax([float(query @ keys[p][kv]) / np.sqrt(dim) for p in visible])
            heads.append(sum(share * values[p][kv] for share, p in zip(shares, visible, strict=True)))
        out.append(linear(weights, f"{name}.o_proj", np.concatenate(heads)))
    return out


@dataclass
class HeadShape:
    """What the head's tensors do not say themselves."""

    layers: int
    heads: int
    block_size: int  # trained: it centres the relative slot table
    rms_eps: float
    vector_eps: float
    logit_scale: float


def layer_norm(vector: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = vector - vector.mean()
    return centred / np.sqrt((centred * centred).mean() + 1e-5) * weight + bias


def unit(vector: np.ndarray, floor: float) -> np.ndarray:
    return vector / max(float(np.sqrt((vector * vector).sum())), floor)


def lilicorr(
    weights: Weights,
    shape: HeadShape,
    embeddings: np.ndarray,
    log_probs: np.ndarray,
    hidden: np.ndarray,
    anchor: np.ndarray,
    anchor_valid: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """One block: embeddings (S,K,H), log_probs (S,K), hidden (S,H), anchor (H); returns start (K), pair (S-1,K,K)."""
    slots, k, _ = embeddings.shape
    lattice = []  # slot-major
    for s in range(slots):
        for r in range(k):
            token = embeddings[s, r]
            x = linear(weights, "token_proj", token) if "token_proj.weight" in weights else token
            x = x + linear(weights, "pass_hidden_proj", hidden[s])
            logp = log_probs[s, r]
            numbers = np.array(
                [
                    logp,
                    np.exp(logp),
                    logp - max(log_probs[s]),
                    r / (k - 1) if k > 1 else 0.0,
                    1.0 if r == 0 else 0.0,
                ]
            )
            normed = layer_norm(numbers, weights["feature_mlp.0.weight"], weights["feature_mlp.0.bias"])
            x = x + linear(weights, "feature_mlp.3", silu(linear(weights, "feature_mlp.1", normed)))
            lattice.append(x + weights["slot_embedding"][0, 0, s, 0] + weights["rank_embedding"][0, 0, 0, r])
    width = len(lattice[0])
    for layer in range(shape.layers):
        name = f"layers.{layer}"
        normed = [rms_norm(x, weights[f"{name}.attn_norm.weight"], shape.rms_eps) for x in lattice]
        mixed = lattice_attention(weights, f"{name}.attn", shape, normed, k)
        lattice = [x + y for x, y in zip(lattice, mixed, strict=True)]
        normed = [rms_norm(x, weights[f"{name}.mlp_norm.weight"], shape.rms_eps) for x in lattice]
        lattice = [
            x + linear(weights, f"{name}.mlp.2", silu(linear(weights, f"{name}.mlp.0", y)))
            for x, y in zip(lattice, normed, strict=True)
        ]
    anchor_row = linear(weights, "context_proj", anchor) if anchor_valid else np.zeros(width)
    anc = rms_norm(anchor_row, weights["anchor_norm.weight"], shape.rms_eps)
    outgoing, incoming = [], []
    for x in lattice:
        x = rms_norm(x, weights["output_norm.weight"], shape.rms_eps)
        g = silu(linear(weights, "factor_input_proj", np.concatenate([x, anc, x * anc])))
        outgoing.append(unit(linear(weights, "out_head", g), shape.vector_eps))
        incoming.append(unit(linear(weights, "in_head", g), shape.vector_eps))
    anchor_out = unit(linear(weights, "anchor_out_head", anc), shape.vector_eps)
    start = np.array([shape.logit_scale * float(anchor_out @ incoming[j]) for j in range(k)])
    pair = np.zeros((slots - 1, k, k))
    for s in range(slots - 1):
        for i in range(k):
            for j in range(k):
                pair[s, i, j] = shape.logit_scale * float(outgoing[s * k + i] @ incoming[(s + 1) * k + j])
    return start, pair


def attention_bias(weights: Weights, block_size: int, head: int, query_slot: int, key_slot: int) -> float:
    bias = float(weights["relative_slot_bias"][head, query_slot - key_slot + block_size - 1])
    return bias + float(weights["same_slot_bias"][head]) if query_slot == key_slot else bias


def lattice_attention(
    weights: Weights, name: str, shape: HeadShape, rows: list[np.ndarray], k: int
) -> list[np.ndarray]:
    width = len(rows[0])
    dim = width // shape.heads
    packed = [weights[f"{name}.in_proj_weight"] @ x + weights[f"{name}.in_proj_bias"] for x in rows]
    out = []
    for i in range(len(rows)):
        heads = []
        for h in range(shape.heads):
            part = slice(h * dim, (h + 1) * dim)
            query = packed[i][:width][part]
            scores = [
                float(query @ packed[j][width : 2 * width][part]) / np.sqrt(dim)
                + attention_bias(weights, shape.block_size, h, i // k, j // k)
                for j in range(len(rows))
            ]
            shares = softmax(scores)
            heads.append(sum(share * packed[j][2 * width :][part] for j, share in enumerate(shares)))
        out.append(linear(weights, f"{name}.out_proj", np.concatenate(heads)))
    return out


def walk(start: np.ndarray, pair: np.ndarray) -> list[int]:
    """One block's greedy path: best start, then best successor of the committed one; lower index wins, NaN never does."""

    def best(row: np.ndarray) -> int:
        chosen = -1
        for j in range(len(row)):
            if not np.isnan(row[j]) and (chosen < 0 or row[j] > row[chosen]):
                chosen = j
        return max(chosen, 0)

    path = [best(start)]
    for scores in pair:
        path.append(best(scores[path[-1]]))
    return path
