"""Planning: what a run will cost, worked out from program, inputs, tokenizer and template alone.

Pure, and without torch: nothing is run and no model is loaded.
"""

from flowforge.planning.plan import Plan, PlannedGeneration, ReadAgain
from flowforge.planning.planner import plan_program
from flowforge.planning.prompts import Tokenizing, Turn
from flowforge.planning.quantity import Quantity

__all__ = [
    "Plan",
    "PlannedGeneration",
    "Quantity",
    "ReadAgain",
    "Tokenizing",
    "Turn",
    "plan_program",
]
