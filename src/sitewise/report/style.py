"""What all figures share: a backend that needs no screen, and colours that differ in lightness too."""

import matplotlib

matplotlib.use("Agg")

INK, ACCENT, GREY = "#222222", "#0b6e8f", "#9a9a9a"
GRID, STRIPE = "#dddddd", "#f4f4f4"
