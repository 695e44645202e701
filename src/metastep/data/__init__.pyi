from metastep.data.official import PictureSplit as PictureSplit
from metastep.data.pictures import Labelled as Labelled, Pictures as Pictures, classes_by_share as classes_by_share
from metastep.data.registry import ClassSplit as ClassSplit, DataSet as DataSet, load as load

__all__: list[str]
