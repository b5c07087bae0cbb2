"""The classes of this package that may be saved with a model."""

from sitewise.artifacts import Record
from sitewise.tables.features import CategoryFeature, NumberFeature
from sitewise.tables.reader import ImageInput, TableReader
from sitewise.tables.roles import Roles

RECORDS = {
    "CategoryFeature": Record(CategoryFeature),
    "ImageInput": Record(ImageInput),
    "NumberFeature": Record(NumberFeature),
    "Roles": Record(Roles),
    "TableReader": Record(TableReader),
}
