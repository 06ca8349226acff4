"""rank(): which learning rule has the lower J?"""

from lossnav.ranking.comparison import AsRow, planner, rank
from lossnav.ranking.table import Optimal, Ranking, Row

__all__ = ["AsRow", "Optimal", "Ranking", "Row", "planner", "rank"]
