"""Which notebook cell shows each figure of figures/, and what it shows in a few words.

The order is that of the gallery in README.md. A figure that no cell here shows is a test's error.
"""

from typing import NamedTuple


class Shown(NamedTuple):
    cell: str  # "NOTEBOOK#CELL"
    caption: str


FIGURES = {
    "extrapolation": Shown("11_extrapolation#ext-main", "perplexity past the training length"),
    "extrapolation_beside_the_paper": Shown("11_extrapolation#ext-paper", "beside the ALiBi paper"),
    "extrapolation_two_lengths": Shown("11_extrapolation#ext-two", "two training lengths"),
    "extrapolation_by_position": Shown("11_extrapolation#ext-position", "where in the window"),
    "extrapolation_examples": Shown("17_your_encoding#own-results", "five more encodings"),
    "extension": Shown("08_context_extension#ext8-zero-shot", "RoPE extended, zero-shot"),
    "extension_fine_tune": Shown("08_context_extension#ext8-tune", "after a short fine-tune"),
    "extension_within": Shown("08_context_extension#ext8-within", "what it costs within L"),
    "extension_entropy": Shown("08_context_extension#ext8-entropy", "attention spreads out"),
    "longrope": Shown("09_longrope#lrp-test", "a search against the formulas"),
    "longrope_factors": Shown("09_longrope#lrp-factors", "the factors it finds"),
    "longrope_search": Shown("09_longrope#lrp-search", "how it finds them"),
    "real_model_by_position": Shown(
        "14_real_language_model#real-position", "SmolLM2-135M past 8192 tokens"
    ),
    "real_model_trade": Shown("14_real_language_model#real-trade", "what is gained and what lost"),
    "real_model_factors": Shown("14_real_language_model#real-factor", "which factor"),
    "generalization": Shown("12_length_generalization#gen-curves", "tasks past their lengths"),
    "generalization_map": Shown("12_length_generalization#gen-map", "every task and length"),
    "generalization_offset": Shown(
        "12_length_generalization#gen-offset", "counting from elsewhere"
    ),
    "vision": Shown("10_two_dimensional_rope#grid-table", "pictures on larger grids"),
    "vision_squares": Shown("10_two_dimensional_rope#grid-squares", "grids never trained on"),
    "cost_training": Shown("13_cost#cost-training", "time of training"),
    "cost_inference": Shown("13_cost#cost-inference", "time of inference"),
    "cost_memory": Shown("13_cost#cost-memory", "memory"),
    "cost_growth": Shown("13_cost#cost-growth", "time as texts grow"),
    "cost_decoding": Shown("13_cost#cost-decoding", "token by token"),
    "conformance": Shown("15_conformance#con-matrix-code", "implementations put to the test"),
}


def link(cell: str) -> str:
    """Where "NOTEBOOK#CELL" is, from one notebook to another, as JupyterLab writes it."""
    notebook, _, id = cell.partition("#")
    return f"{notebook}.ipynb#cell-id={id}"


def shown_in(figure: str) -> str:
    """The cell that shows a figure, which is a name in figures/ or such a cell itself."""
    return figure if "#" in figure else FIGURES[figure].cell
