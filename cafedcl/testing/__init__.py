"""Conformance tests for a method of your own.

    from cafedcl.testing import check_method

    def test_my_method():
        check_method(MyMethod)

Each check runs the method briefly on the embedded digits, and raises `ConformanceError` with one
line that says what is wrong. A method that passes runs in every engine, resumes bit for bit,
and can be deployed. The same checks are this package's own tests of its methods.
"""

from cafedcl.testing.case import ConformanceError
from cafedcl.testing.checks import CHECKS, check_method

__all__ = ["CHECKS", "ConformanceError", "check_method"]
