"""Without ``--mlx-reference``: skipped with a reason, counted, and nothing imported."""

from __future__ import annotations

import pytest

TESTS = """
    import pytest

    @pytest.fixture(autouse=True, scope="session")
    def costly():
        raise RuntimeError("a fixture ran")

    def test_fixture(mlx_reference):
        assert False

    @pytest.mark.mlx_reference
    def test_marker():
        assert False

    @pytest.mark.mlx_reference(model="one", prompts=["Hello"])
    class TestClass:
        def test_method(self):
            assert False
"""

TESTS_ON_REQUEST = """
    def test_asks_late(request):
        request.getfixturevalue("mlx_reference")
        assert False
"""


def test_tests_that_compare_are_skipped_before_any_fixture(pytester: pytest.Pytester) -> None:
    """The fixture and the marker, on a function or a class, are reason enough."""
    pytester.makepyfile(TESTS)

    result = pytester.runpytest_inprocess("-rs")

    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(
        [
            "mlxcheck: 3 tests that compare with the reference did not run: give --mlx-*",
            "SKIPPED * compares with the reference: give --mlx-reference",
        ]
    )


def test_a_late_request_is_skipped_too(pytester: pytest.Pytester) -> None:
    """``getfixturevalue`` cannot be seen beforehand; it counts all the same."""
    pytester.makepyfile(TESTS_ON_REQUEST)

    result = pytester.runpytest_inprocess()

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["mlxcheck: 1 test that compares with the reference did not*"])


def test_the_fixture_marks_its_tests(pytester: pytest.Pytester) -> None:
    """So ``-m`` finds them all, and ``-m 'not ...'`` leaves them all out."""
    pytester.makepyfile(TESTS.replace('raise RuntimeError("a fixture ran")', "pass"))

    chosen = pytester.runpytest_inprocess("-m", "mlx_reference")
    others = pytester.runpytest_inprocess("-m", "not mlx_reference")

    chosen.assert_outcomes(skipped=3)
    others.assert_outcomes(deselected=3)


def test_a_run_without_such_tests_says_nothing(pytester: pytest.Pytester) -> None:
    """The plugin is not heard where nobody uses it."""
    pytester.makepyfile("def test_mine():\n    pass\n")

    result = pytester.runpytest_inprocess()

    result.assert_outcomes(passed=1)
    assert "comparison" not in result.stdout.str()
    assert "mlxcheck:" not in result.stdout.str()


@pytest.mark.parametrize("flag", [[], ["--mlx-reference"]])
@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("modle='x'", "@pytest.mark.mlx_reference of test_mine does not take modle; *"),
        ("'x'", "@pytest.mark.mlx_reference of test_mine does not take 'x'; its keywords are*"),
    ],
)
def test_an_unknown_keyword_fails(
    pytester: pytest.Pytester, flag: list[str], mark: str, says: str
) -> None:
    """With and without the flag: a marker that nobody reads must not pass for one."""
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.mlx_reference({mark})
        def test_mine():
            pass
        """
    )

    result = pytester.runpytest_inprocess(*flag)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([says])


def test_the_marker_is_registered(pytester: pytest.Pytester) -> None:
    """``--strict-markers`` accepts it, and ``--markers`` explains it."""
    pytester.makepyfile(
        "import pytest\n\n@pytest.mark.mlx_reference\ndef test_mine():\n    pass\n"
    )

    strict = pytester.runpytest_inprocess("--strict-markers")
    listed = pytester.runpytest_inprocess("--markers")

    strict.assert_outcomes(skipped=1)
    listed.stdout.fnmatch_lines(["@pytest.mark.mlx_reference(model, backend, prompts, max_*"])
