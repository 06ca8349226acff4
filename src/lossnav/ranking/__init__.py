"""rank(): which learning rule has the lower J?"""

from lossnav.ranking.comparison import rank
from lossnav.ranking.table import Optimal, Ranking, Row

__all__ = ["Optimal", "Ranking", "Row", "rank"]
