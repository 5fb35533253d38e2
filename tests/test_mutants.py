"""The draw of mutants and its score; the mutants themselves are `make mutants`."""

from tests import mutants


def test_every_module_and_the_file_of_its_tests_exist():
    for module, *files in mutants.MODULES.values():
        assert (mutants.ROOT / f"{module}.py").is_file()
        assert files and all((mutants.ROOT / "tests" / f"{file}.py").is_file() for file in files)


def test_a_draw_is_that_of_its_seed_whatever_the_order():
    names = [f"x_{k}" for k in range(30)]
    some = mutants.drawn(names, 5, 0)
    assert some == mutants.drawn(reversed(names), 5, 0) and len(set(some)) == 5
    assert some != mutants.drawn(names, 5, 1)
    assert mutants.drawn(names, 99, 0) == sorted(names)


def test_a_mutant_that_no_test_reaches_counts_as_let_pass():
    statuses = ["killed"] * 7 + ["timeout", "survived", "no tests"]
    found = {str(k): status for k, status in enumerate(statuses)}
    said = "odometer: 99 mutants, 10 tried, 8 killed, 2 survived, 80 % (44 to 97 %)"
    assert mutants.score("odometer", 99, found) == said
