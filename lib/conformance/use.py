"""Family 0: what an encoding must survive in use. Gradients, compilation, saving and export."""

import io
import math
from functools import partial

import safetensors.torch
import torch
from hypothesis import strategies as st

from lib.conformance.checking import Measure, catches, worst
from lib.conformance.parts import FEW_HEADS, SMALL, Content, Doors, agree, doors
from lib.conformance.subjects import seeded

USE = []
in_use = partial(catches, 0, USE)


@in_use(width=st.integers(1, 2))
def gradients_are_right(subject, width):
    """Of inputs and of parameters, against finite differences in float64."""
    model = Doors(subject.prepare(width, 2, max_length=4).double())
    positions = subject.place(3)
    names = [name for name, _ in model.named_parameters()]

    def outputs(x, q, k, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return tuple(torch.func.functional_call(model, named, (x, q, k, positions)).values())

    given = (*Content.of(model.encoding, 3, 1)[:3], *model.parameters())
    given = tuple(t.detach().clone().requires_grad_() for t in given)
    right = torch.autograd.gradcheck(outputs, given, raise_exception=False, fast_mode=True)
    return Measure(0.0 if right else math.inf, 0.0)


@in_use(n_heads=FEW_HEADS, T=SMALL, before=st.integers(0, 3), after=st.integers(0, 3))
def memory_layout_does_not_matter(subject, n_heads, T, before, after):
    """Tensors that are slices of wider ones, as q, k and v of one product are, give the same."""
    encoding, positions = subject.prepare(1, n_heads).double(), subject.place(T)
    content = Content.of(encoding, T)
    wider = (torch.nn.functional.pad(t, (before, after)) for t in content)
    sliced = Content(
        *(w[..., before : before + t.shape[-1]] for w, t in zip(wider, content, strict=True))
    )
    expected = doors(encoding, content, positions, positions)
    return agree(doors(encoding, sliced, positions, positions), expected)


@in_use()
def compiles_once_for_all_lengths(subject):
    """Compiled for lengths that change, a new length compiles nothing, and nothing changes.

    Graphs may break; what is measured is that eager and compiled results agree.
    """
    compiled_so_far = []

    def backend(graph, _):
        compiled_so_far.append(graph)
        return graph.forward

    model = Doors(subject.prepare(2, 3))
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    counts, measures = [], []
    for T in (6, 9, 4, 12, 17):
        content, positions = Content.of(model.encoding, T, dtype=torch.float32), subject.place(T)
        with torch.no_grad():
            found, expected = (m(*content[:3], positions) for m in (compiled, model))
        measures.append(agree(found, expected, relative=1e-5))
        counts.append(len(compiled_so_far))
    torch.compiler.reset()
    if counts[1] != counts[-1]:  # the second length may be what shows that lengths change
        raise AssertionError(f"graphs compiled after each length: {counts}")
    return worst(measures)


def restored(subject, through) -> Measure:
    """An encoding, and a new one that got its state dict `through` a format."""
    original = subject.prepare(2, 3)
    with seeded(5):
        new = subject.build(d_model=original.d_model, n_heads=3, max_length=original.max_length)
    new.load_state_dict(through(original.state_dict()))
    content, positions = Content.of(original, 4, dtype=torch.float32), subject.place(4)
    found, expected = (doors(e, content, positions, positions) for e in (new, original))
    return agree(found, expected, 0.0)


@in_use()
def saving_keeps_everything(subject):
    """A new one with the saved state does, bit for bit, the same."""

    def through_a_file(state):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    return restored(subject, through_a_file)


@in_use()
def state_exports_to_safetensors(subject):
    """The state dict can be written as safetensors, and read again."""
    return restored(subject, lambda state: safetensors.torch.load(safetensors.torch.save(state)))
