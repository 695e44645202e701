"""The documentation stays a third shorter than it was."""

from study.words import counted, kept, now, total

PAGE = """Three words here.

| a | table |

<!-- table: made -->
| of | results |
<!-- end -->

    code

- an item
    that continues

```python
more = code
```
"""


def test_prose_is_what_stands_outside_of_tables_and_code() -> None:
    assert counted(PAGE) == {"all": 31, "without generated tables": 19, "prose": 8}


def test_prose_is_at_most_two_thirds_of_what_it_was() -> None:
    assert total(now())["prose"] <= 2 * kept()["before"]["prose"] / 3
