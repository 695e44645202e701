"""`python -m study run compiled_product`; what compiles is tested beside the engine."""

from study.experiments.compiled_product import compare, rows_of


def test_a_row_says_how_far_it_is_off_and_what_ran() -> None:
    row = compare("MLP, SGD", "reptile", "adam")
    assert row["error"] == 0
    assert row["path"].endswith("not compiled: the method is not a sweep over windows")


def test_what_is_refused_has_a_row() -> None:
    (row,) = rows_of([("hyper-cleaning", "reptile", "sgd")])
    assert row["error"] is None
    assert row["path"].startswith("refused: Reptile needs")
