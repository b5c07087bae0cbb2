"""GPA and the methods it is compared with. All share an interface, a training loop and a registry.

`METHODS` maps names to classes. The docstring of a class has the formula, the reference and the assumptions of the
method; its `card` has the entries of the paper's two tables of methods.
"""

from sitewise.bench.methods.base import AdaptedMethod, Method
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.copa import CoPA, CoPAStar
from sitewise.bench.methods.coral import CORAL
from sitewise.bench.methods.dann import DANN
from sitewise.bench.methods.erm import ERM, ERMWithoutColor, ERMWithZ
from sitewise.bench.methods.gpa import (
    GPA,
    GPAAsTrained,
    GPAConstant,
    GPAGuarded,
    GPAJoint,
    GPAOracle,
    GPAPooled,
    GPAPooledStar,
    GPAStar,
)
from sitewise.bench.methods.gpa_paper import GPAPaper, GPAPaperStar
from sitewise.bench.methods.group_dro import GroupDRO
from sitewise.bench.methods.irm import IRM
from sitewise.bench.methods.iwdann import IWDANN
from sitewise.bench.methods.label_shift import BBSE, RLLS, LabelShiftEM
from sitewise.bench.methods.lamda import LAMDA
from sitewise.bench.methods.lame import LAME
from sitewise.bench.methods.lascal import LaSCal
from sitewise.bench.methods.mapls import MAPLS
from sitewise.bench.methods.quantifier import Quantifier
from sitewise.bench.methods.sfb import SFB
from sitewise.bench.methods.tent import TENT
from sitewise.bench.methods.ttlsa import TTLSA

METHODS: dict[str, type[Method]] = {
    "erm": ERM,
    "erm_z": ERMWithZ,
    "erm_c": ERMWithoutColor,
    "irm": IRM,
    "dann": DANN,
    "coral": CORAL,
    "group_dro": GroupDRO,
    "iwdann": IWDANN,
    "lamda": LAMDA,
    "sfb": SFB,
    "ttlsa": TTLSA,
    "label_shift_em": LabelShiftEM,
    "bbse": BBSE,
    "rlls": RLLS,
    "mapls": MAPLS,
    "lascal": LaSCal,
    "quantifier": Quantifier,
    "tent": TENT,
    "lame": LAME,
    "copa": CoPA,
    "copa_star": CoPAStar,
    "gpa": GPA,
    "gpa_star": GPAStar,
    "gpa_paper": GPAPaper,
    "gpa_paper_star": GPAPaperStar,
    "gpa_joint": GPAJoint,
    "gpa_constant": GPAConstant,
    "gpa_guarded": GPAGuarded,
    "gpa_oracle": GPAOracle,
    "gpa_as_trained": GPAAsTrained,
    "gpa_pooled": GPAPooled,
    "gpa_pooled_star": GPAPooledStar,
}
"""The methods by name; an entry makes a method known to experiments, tables and the contract tests."""

__all__ = ["METHODS", "AdaptedMethod", "Card", "Method"]
