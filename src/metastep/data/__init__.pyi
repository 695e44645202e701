from metastep.data.official import PictureSplit as PictureSplit
from metastep.data.pictures import Labelled as Labelled, Pictures as Pictures
from metastep.data.registry import ClassSplit as ClassSplit, DataSet as DataSet, load as load
from metastep.data.splits import classes_by_share as classes_by_share

__all__: list[str]
