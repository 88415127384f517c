"""What tests of deployments share."""

import pytest

from cafedcl.core.errors import CafedclError


@pytest.fixture(scope="session")
def nginx() -> str:
    """The path of nginx; a test that needs it is skipped where it is not installed."""
    from cafedcl.deploy.proxy import nginx_program

    try:
        return nginx_program()
    except CafedclError as error:
        pytest.skip(str(error))
