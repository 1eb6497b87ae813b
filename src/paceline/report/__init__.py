"""One self-contained HTML page: the answer, the ranking, the figures, what to know, and how to repeat it."""

from paceline.report.page import write_figures, write_report

__all__ = ["write_figures", "write_report"]
