"""Begin with the weights of another checkpoint: the whole drafter, or the drafter under a new head."""

from __future__ import annotations

import dataclasses

from lilicorr.runtime.errors import UserError
from lilicorr.train.drafter import Drafter

# Change no number of the forward, or are compared otherwise (head, windows).
FREE = {"head", "extra", "initializer_range", "max_position_embeddings", "layer_types", "sliding_window"}


def check_warm_start(source: Drafter, drafter: Drafter) -> None:
    """Refuse a source that computes something else than `drafter` would with its weights.

    A source with another kind of head, or none, gives the drafter alone. Head fields without a shape of their own (logit_scale,
    vector_eps) would silently change what trained weights mean, so they must be equal too.

    Raises:
        UserError: every difference at once.
    """
    ours, theirs = drafter.config, source.config
    different = [
        f"{f.name}: {getattr(theirs, f.name)!r} there, {getattr(ours, f.name)!r} here"
        for f in dataclasses.fields(ours)
        if f.name not in FREE and getattr(theirs, f.name) != getattr(ours, f.name)
    ]
    windows = [[config.window(i) for i in range(config.num_hidden_layers)] for config in (theirs, ours)]
    if windows[0] != windows[1]:
        different.append(f"windows: {windows[0]} there, {windows[1]} here")
    if theirs.head is not None and type(theirs.head) is type(ours.head):
        different += [
            f"head.{name}: {value!r} there, {vars(ours.head)[name]!r} here"
            for name, value in vars(theirs.head).items()
            if vars(ours.head)[name] != value
        ]
    if different:
        raise UserError(
            "the checkpoint to start from does not fit the recipe:\n  " + "\n  ".join(different),
            hint="make the recipe equal to the checkpoint, or remove `warm_start`",
        )


def warm_start(drafter: Drafter, source: Drafter) -> None:
    """Copy the weights of `source`, those of a head of another kind excepted, into `drafter`."""
    check_warm_start(source, drafter)
    names = drafter.state_dict().keys()
    drafter.load_state_dict({n: t for n, t in source.state_dict().items() if n in names}, strict=False)


def freeze_all_but_head(drafter: Drafter) -> None:
    """Train the head on the drafter as it is.

    Raises:
        UserError: there is no head.
    """
    if drafter.head is None:
        raise UserError("`head_only` is true and the recipe has no head", hint="choose a head, or remove `head_only`")
    drafter.requires_grad_(False)
    drafter.head.requires_grad_(True)
