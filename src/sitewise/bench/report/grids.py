"""A table before formatting, and its three formats: Markdown, LaTeX (booktabs) and the terminal."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

WIDEST = 34  # characters of a column in the terminal; longer text is wrapped
FRAME = 3  # characters between columns in the terminal


@dataclass(frozen=True)
class Cell:
    """An entry of a table: its text, a second line in smaller print, and whether it is bold or a bibliography key."""

    text: str
    below: str = ""
    bold: bool = False
    cite: bool = False


@dataclass(frozen=True)
class Grid:
    """A table with a title and notes. The heading of a column has one or two levels.

    In LaTeX, equal upper levels of neighbouring columns are merged.
    """

    title: str
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)


def write_markdown(grid: Grid) -> str:
    """Return a Markdown table with its title above and its notes below."""

    def line(entries: Sequence[str]) -> str:
        return "| " + " | ".join(entries) + " |"

    def entry(cell: Cell) -> str:
        text = f"`{cell.text}`" if cell.cite and cell.text else escape_markdown(cell.text)
        text = f"**{text}**" if cell.bold else text
        return f"{text}<br>{escape_markdown(cell.below)}" if cell.below else text

    head = ["<br>".join(escape_markdown(level) for level in column) for column in grid.columns]
    lines = [f"**{escape_markdown(grid.title)}**", "", line(head), "|" + "---|" * len(head)]
    lines += [line([entry(cell) for cell in row]) for row in grid.rows]
    lines += [part for note in grid.notes for part in ("", escape_markdown(note))]
    return "\n".join(lines) + "\n"


def write_latex(grid: Grid) -> str:
    """Return a LaTeX `table` for the package booktabs, with its notes below in small print."""

    def line(entries: Sequence[str]) -> str:
        return "    " + " & ".join(entries) + r" \\"

    def entry(cell: Cell) -> str:
        text = rf"\cite{{{cell.text}}}" if cell.cite and cell.text else escape_latex(cell.text)
        text = rf"\textbf{{{text}}}" if cell.bold else text
        return rf"\shortstack[l]{{{text}\\{{\footnotesize {escape_latex(cell.below)}}}}}" if cell.below else text

    body = [line([entry(cell) for cell in row]) for row in grid.rows]
    if any(cell.below for row in grid.rows for cell in row):
        body = ["\n    \\addlinespace\n".join(body)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{escape_latex(grid.title)}}}",
            rf"  \begin{{tabular}}{{{'l' * len(grid.columns)}}}",
            r"    \toprule",
            *_latex_head(grid.columns),
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            *(rf"  \par\smallskip{{\footnotesize {escape_latex(note)}\par}}" for note in grid.notes),
            r"\end{table}",
            "",
        ]
    )


def _latex_head(columns: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of the heading. An upper level spans its columns and has a rule below; lower levels follow."""
    if max(map(len, columns)) == 2:
        upper, rules, start = [], [], 1
        for name, group in groupby(columns, key=lambda column: column[0] if len(column) == 2 else ""):
            width = len(list(group))
            upper.append(rf"\multicolumn{{{width}}}{{l}}{{{escape_latex(name)}}}" if name else " & ".join([""] * width))
            rules += [rf"\cmidrule(lr){{{start}-{start + width - 1}}}"] if name else []
            start += width
        yield "    " + " & ".join(upper) + r" \\"
        yield "    " + " ".join(rules)
    yield "    " + " & ".join(escape_latex(column[-1]) for column in columns) + r" \\"


@dataclass(frozen=True)
class TerminalGrid:
    """A grid for the terminal. Columns that do not fit go into a further table, which repeats the first column."""

    grid: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield title, tables and notes; each table has as many columns as fit into the width of the terminal."""
        yield Text(self.grid.title, style="bold")
        for columns in self._fitting(options.max_width):
            table = Table()
            for column in columns:
                table.add_column(Text("\n".join(self.grid.columns[column])), max_width=WIDEST)
            for row in self.grid.rows:
                table.add_row(*(_terminal_text(row[column]) for column in columns))
            yield table
        for note in self.grid.notes:
            yield Text(note, style="dim")

    def _fitting(self, width: int) -> Iterator[list[int]]:
        """Yield the numbers of the columns of each table."""
        widths = [min(WIDEST, self._width(column)) + FRAME for column in range(len(self.grid.columns))]
        shown, used = [0], widths[0] + 1
        for column in range(1, len(widths)):
            if len(shown) > 1 and used + widths[column] > width:
                yield shown
                shown, used = [0], widths[0] + 1
            shown.append(column)
            used += widths[column]
        yield shown

    def _width(self, column: int) -> int:
        cells = (row[column] for row in self.grid.rows)
        return max(len(part) for part in (*self.grid.columns[column], *(t for c in cells for t in (c.text, c.below))))


def _terminal_text(cell: Cell) -> Text:
    text = Text(cell.text, style="bold" if cell.bold else "")
    return text.append(f"\n{cell.below}", style="dim") if cell.below else text


def escape_markdown(text: str) -> str:
    """Escape the special characters of Markdown."""
    return re.sub(r"([\\`*_\[\]|<])", r"\\\1", text)


LATEX = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "†": r"\textdagger{}"},
    **{"≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "≠": r"$\neq$", "×": r"$\times$", "±": r"$\pm$"},
    **{"−": "$-$", "·": r"$\cdot$", "→": r"$\to$", "∞": r"$\infty$", "∈": r"$\in$", "Σ": r"$\Sigma$"},
    **{"α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "η": r"$\eta$"},
    **{"θ": r"$\theta$", "λ": r"$\lambda$", "μ": r"$\mu$", "π": r"$\pi$", "ρ": r"$\rho$", "σ": r"$\sigma$"},
    **{"τ": r"$\tau$", "φ": r"$\varphi$", "χ": r"$\chi$", "ψ": r"$\psi$", "ω": r"$\omega$", "Δ": r"$\Delta$"},
}


def escape_latex(text: str) -> str:
    r"""Convert text to LaTeX: `ERM^Z` gets a superscript, a number its minus sign, β becomes $\beta$ and 50% 50\%."""
    parts = re.split(r"(\^\w+|(?<![\w)])-(?=\d))", text)  # a caret with its word, a minus sign, other text
    return "".join(_latex_part(part) for part in parts)


def _latex_part(part: str) -> str:
    if part == "-":
        return "$-$"
    if re.fullmatch(r"\^\w+", part):
        return rf"\textsuperscript{{{_latex_signs(part[1:])}}}"
    return _latex_signs(part)


def _latex_signs(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text)
