"""Generated parts of the README, between marks."""


def put(text: str, new: str, marks: tuple[str, str]) -> str:
    """Put new lines between the two marks of a text.

    Raises:
        SystemExit: the text does not have both marks, in this order.
    """
    before, _, rest = text.partition(marks[0])
    _, mark, after = rest.partition(marks[1])
    if not mark:
        raise SystemExit(f"README.md has no marks {marks[0].strip()} ... {marks[1].strip()}")
    return before + marks[0] + new + marks[1] + after
