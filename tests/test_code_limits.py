"""The limits of `make lint` on the size of the code can fail."""

from tests.code_limits import ROOT, SETTINGS, find_oversized, find_repeated, list_classes


def test_what_is_too_large_is_named() -> None:
    """A file, a class and a function just above their limits; none of what is just within."""
    path = ROOT / "tasks" / "made_up.py"
    function = "def grow() -> None:\n" + "    pass\n" * SETTINGS["max_function_lines"]
    assert list(find_oversized(path, function)) == ["tasks/made_up.py: grow has 51 lines, more than 50"]
    assert list(find_oversized(path, function.removesuffix("    pass\n"))) == []
    klass = "class Grown:\n" + "    number = 1\n" * SETTINGS["max_class_lines"]
    assert list(find_oversized(path, klass)) == ["tasks/made_up.py: Grown has 201 lines, more than 200"]
    assert list(find_oversized(path, "\n" * 400)) == []
    assert list(find_oversized(path, "\n" * 401)) == ["tasks/made_up.py has 401 lines, more than 400"]


def test_a_class_name_means_one_thing() -> None:
    """Names of two classes are found, in one file or in two."""
    names = [name for text in ("class Part:\n    class Row: ...\n", "class Part: ...\n") for name in list_classes(text)]
    assert list(find_repeated(names)) == ["2 classes are called Part"]
