"""`ga.plot`: the figures of a result, for notebooks, pages and the command line alike.

Every function takes a result, fresh or from `ga.load`, and returns a figure whose title
says what was found. Nothing is written; `figure.savefig("mine.pdf")` does that.
"""

from gradaudit.report.figures_of_leakage import frontier, reconstructions, resilience
from gradaudit.report.figures_of_privacy import epsilon, line_up, norms

__all__ = ["epsilon", "frontier", "line_up", "norms", "reconstructions", "resilience"]
