"""GPA and everything it is compared with, on one footing: one face, one training loop, one registry.

`METHODS` maps names to classes; each docstring has its formula, its reference and what it assumes, each `card` the
paper's tables of methods.
"""

from sitewise.methods.base import AdaptedMethod, Method, fit_together, remembering, training_key
from sitewise.methods.card import Card
from sitewise.methods.copa import CoPA, CoPAStar
from sitewise.methods.coral import CORAL
from sitewise.methods.dann import DANN
from sitewise.methods.erm import ERM, ERMWithoutColor, ERMWithZ
from sitewise.methods.gpa import GPA, GPAConstant, GPAGuarded, GPAJoint, GPAOracle, GPAStar
from sitewise.methods.group_dro import GroupDRO
from sitewise.methods.irm import IRM
from sitewise.methods.iwdann import IWDANN
from sitewise.methods.label_shift import BBSE, RLLS, LabelShiftEM
from sitewise.methods.sfb import SFB
from sitewise.methods.ttlsa import TTLSA

METHODS: dict[str, type[Method]] = {
    "erm": ERM,
    "erm_z": ERMWithZ,
    "erm_c": ERMWithoutColor,
    "irm": IRM,
    "dann": DANN,
    "coral": CORAL,
    "group_dro": GroupDRO,
    "iwdann": IWDANN,
    "sfb": SFB,
    "ttlsa": TTLSA,
    "label_shift_em": LabelShiftEM,
    "bbse": BBSE,
    "rlls": RLLS,
    "copa": CoPA,
    "copa_star": CoPAStar,
    "gpa": GPA,
    "gpa_star": GPAStar,
    "gpa_joint": GPAJoint,
    "gpa_constant": GPAConstant,
    "gpa_guarded": GPAGuarded,
    "gpa_oracle": GPAOracle,
}

__all__ = [
    "METHODS",
    "AdaptedMethod",
    "Card",
    "Method",
    "fit_together",
    "remembering",
    "training_key",
]
