"""What every test of bad input asks: one clear sentence."""

import pytest


def refuses(call, *words):
    """The call raises ValueError with one sentence that holds these words."""
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert message.endswith(".") and "\n" not in message
    for word in words:
        assert word in message
