"""A constraint whose text spells a control token asks for the text and never for the token."""

from __future__ import annotations

import json

import pytest
from byte_vocabulary import byte_vocabulary

from flowforge.grammars import compile_choice, compile_json_schema, compile_regex


@pytest.mark.parametrize("spelled", ["<end>", "<tool_call>", "a<end>b", "<b>"])
def test_a_forced_text_that_spells_a_control_token_is_written_as_text(spelled: str) -> None:
    vocabulary = byte_vocabulary(["<tool_call>", "<b>"])
    constraints = {
        spelled: compile_choice([spelled], vocabulary.vocabulary),
        json.dumps(spelled): compile_json_schema({"const": spelled}, vocabulary.vocabulary),
        f"{spelled}x": compile_regex(f"{spelled}x", vocabulary.vocabulary),
    }

    for expected, compiled in constraints.items():
        state = compiled.start()
        written: list[int] = []
        while not state.is_complete:
            forced = state.forced_tokens() or vocabulary.allowed(state)[:1]
            for token_id in forced:
                state.advance(token_id)
            written += forced
        assert vocabulary.decode(written) == expected
        assert not set(written) & set(vocabulary.control_ids.values())
