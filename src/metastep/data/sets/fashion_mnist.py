"""Fashion-MNIST: 60,000 pictures of clothes to train on and 10,000 to test, 28x28 (Xiao, Rasul and Vollgraf 2017)."""

from metastep.core.registry import register
from metastep.data.sets.mnist import MNIST, downloads

FOLDER = "fashion-mnist"


@register("dataset", "fashion_mnist")
class FashionMNIST(MNIST):
    summary = "10 kinds of clothes, 28x28"
    licence = "MIT (Zalando)"
    source = "https://github.com/zalandoresearch/fashion-mnist, its four idx files"
    what = f"Fashion-MNIST (a folder {FOLDER} with train-images-idx3-ubyte.gz and three others, packed or not)"
    folders = (FOLDER, "fashion_mnist", "FashionMNIST/raw", "FashionMNIST")
    downloads = downloads(
        FOLDER,
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
        "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
    )
    kinds = (
        "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    )  # fmt: skip
