"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.responses import JSONResponse

from flowforge.backends.protocol import ToolOffer
from flowforge.serving.bodies import read_body
from flowforge.serving.failures import bad_request
from flowforge.serving.prompts import definitions_of, prompt_of
from flowforge.serving.requests import DetokenizeRequest, TokenizeRequest

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from flowforge.serving.service import Service


class Tokens:
    """The two endpoints of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: a text or messages as the model's tokens."""
        asked = await read_body(request, TokenizeRequest, self._service.settings)
        service = self._service
        service.require_model(asked.model)
        # A long text takes long, and others are being answered.
        ids = await anyio.to_thread.run_sync(self._ids, asked)
        told: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": service.backend.capacity,
            "tokens": ids,
        }
        if asked.return_token_strs:
            told["token_strs"] = [service.texts.text(one) for one in ids]
        return JSONResponse(told)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: tokens as text."""
        asked = await read_body(request, DetokenizeRequest, self._service.settings)
        self._service.require_model(asked.model)
        if not asked.tokens:
            raise bad_request("tokens is empty", "tokens")
        self._service.require_ids(asked.tokens, "tokens")
        tokenizer = self._service.backend.tokenizer
        return JSONResponse({"prompt": tokenizer.decode(asked.tokens, skip_special=False)})

    def _ids(self, asked: TokenizeRequest) -> list[int]:
        tokenizer = self._service.backend.tokenizer
        if asked.messages is not None:
            offer = ToolOffer(definitions_of(asked.tools)) if asked.tools else None
            return prompt_of(self._service.backend, asked.messages, offer)
        assert asked.prompt is not None, "one of the two is there"
        encode = tokenizer.encode_completion if asked.add_special_tokens else tokenizer.encode
        return encode(asked.prompt)
