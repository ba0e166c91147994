"""Values that no caller should give: refused where they come in, by name, with what is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest
from flowforge.errors import EngineError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 1.5) for name in ("top_k", "seed", "branch", "max_tokens", "min_tokens")),
        *((name, True) for name in ("top_k", "seed", "num_logprobs")),
        *((name, "1") for name in ("temperature", "top_p", "min_p", "repetition_penalty")),
        *((name, None) for name in ("presence_penalty", "frequency_penalty", "logit_bias")),
        ("num_logprobs", 1.5),
        ("num_logprobs", 101),
        ("logit_bias", [(1, 2.0)]),
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", {1.0: 2.0}),
        ("logit_bias", {1: "2"}),
        ("temperature", float("nan")),
        ("temperature", True),
    ],
)
def test_sampling_refuses_a_value_by_name(name: str, value: Any) -> None:
    with pytest.raises(EngineError, match=f"EN210.*{name}.* must be .*, got "):
        SamplingParams(**{name: value})


def test_an_integer_of_numpy_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        EngineError, match=r"seed must be an integer, got .*\(?3\)?.*\n.*int\("
    ) as e:
        SamplingParams(seed=np.int64(3))  # type: ignore[arg-type]  # the case
    assert "EN210" == e.value.code


@pytest.mark.parametrize("priority", ["high", None, 0.5, float("nan"), True])
def test_a_request_refuses_a_priority_that_is_no_integer(priority: Any) -> None:
    with pytest.raises(EngineError, match=r"EN210.*priority must be an integer"):
        GenerationRequest(SamplingParams(), priority=priority)


@pytest.mark.parametrize("part", ["model_revision", "adapter", "salt"])
def test_a_namespace_is_made_of_texts(part: str) -> None:
    wrong: Any = {part: ["x"]}

    with pytest.raises(EngineError, match=f"EN210.*{part} of a namespace must be a text"):
        Namespace(**wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page_size", "16"),
        ("page_size", 2.5),
        ("max_running", True),
        ("kv_bytes", "1GB"),
        ("num_pages", 0),
        ("num_threads", 1_000_000),
        ("context_len", 1e3),
        ("overlap", True),
        ("graphs", "on"),
    ],
)
def test_a_setting_of_the_engine_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(EngineError, match=f"EN230.*{name} must be "):
        EngineConfig(**{name: value})
