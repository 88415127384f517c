"""What tests of deployments share."""

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.deploy import keys


@pytest.fixture(scope="session")
def nginx() -> str:
    """The path of nginx; a test that needs it is skipped where it is not installed."""
    from cafedcl.deploy.proxy import nginx_program

    try:
        return nginx_program()
    except CafedclError as error:
        pytest.skip(str(error))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the clock of certificates by so many days."""

    def move(days: int) -> None:
        class Later(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(days=days)

        monkeypatch.setattr(keys, "datetime", Later)

    return move
