"""What each rung of the parity ladder may deviate, per precision, and why. The one home of these numbers.

Sources of deviation. fp32: only the order of summation, which differs between PyTorch and ONNX Runtime and between chunkings of
a prompt. fp16: weights and activations are rounded to 11 bits, once per operation, in every layer; norms, softmax, log-sum-exp and
head scores stay fp32 islands. The reference is fp32 in both cases. bf16 has no entry: no backend here runs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lilicorr.runtime.errors import UserError


@dataclass(frozen=True)
class Budget:
    """Limits of one precision. A value at its limit passes."""

    logits_abs: float  # largest logit error; half the distance at which two logits can change places
    logits_kl: float  # mean KL(reference ‖ graph) per token, nats
    tensor_scaled: float  # largest error of features, K/V rows, hidden rows over the tensor's root mean square
    cosine_distance: float  # largest 1 - cosine of any tensor
    log_probs_abs: float  # largest error of a candidate's log-probability
    scores_abs: float  # largest error of a start or pair score (they lie within ± logit_scale)
    tie_gap: float  # closer reference scores may change places (within one engine: `runtime.lossless.TIE_GAP`)
    rounds_equal: float  # smallest share of rounds whose drafts equal the PyTorch loop's
    acceptance_rel: float  # largest relative difference of the mean acceptance length


BUDGETS = {
    # Measured on SmolLM2-135M: logits 1e-4, log-probabilities 6e-5, features 5e-4 of their root mean square, scores 5e-6. The
    # limits leave a factor of about ten for larger models and other machines.
    "fp32": Budget(
        logits_abs=2e-3,
        logits_kl=1e-6,
        tensor_scaled=5e-3,
        cosine_distance=1e-6,
        log_probs_abs=2e-3,
        scores_abs=2e-3,
        tie_gap=4e-3,  # twice logits_abs: each of the two scores may move by as much
        rounds_equal=0.98,  # a near tie between candidates swaps their ranks, which the head sees as features
        acceptance_rel=0.01,
    ),
    # Measured on SmolLM2-135M: logits 0.08, mean KL 1e-5, features 0.12 of their root mean square (one outlier channel carries
    # most of the magnitude), candidates out of order only where the gap is below 0.1, 94 % of rounds with equal drafts.
    "fp16": Budget(
        logits_abs=0.25,
        logits_kl=2e-4,
        tensor_scaled=0.5,
        cosine_distance=1e-3,
        log_probs_abs=0.25,
        scores_abs=0.1,
        tie_gap=0.5,  # twice logits_abs
        rounds_equal=0.8,
        acceptance_rel=0.05,
    ),
}


def budget_of(precision: str) -> Budget:
    """The budget of a bundle's precision.

    Raises:
        UserError: ONNX Runtime, which every comparison runs the graphs in, has no CPU kernels for it.
    """
    budget = BUDGETS.get(precision)
    if budget is None:
        raise UserError(
            f"a {precision} bundle cannot be checked here: ONNX Runtime has no CPU kernels for it",
            hint=f"take a bundle of the same pair in {' or '.join(BUDGETS)}",
        )
    return budget
