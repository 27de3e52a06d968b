"""What can be asked of a job."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.domain.budget import deadlines
from services.generation.domain.failures import WrongRequest
from services.generation.domain.params import image_params

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
NAMES = ("prompt", "size", "count", "transparent", "subtype", "references", "seed", "model")


def test_what_is_left_out_has_its_default() -> None:
    """GN1"""
    params = image_params({"prompt": "a lantern"})

    assert (params.pixels, params.count, params.transparent) == ((1024, 1024), 1, False)
    assert (params.subtype, params.references, params.seed) == ("plain", (), None)
    assert params.model == "studio"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"prompt": None},
        {"prompt": "  \n"},
        {"prompt": "x" * 4_001},
        {"prompt": 7},
        {"prompt": "data:image/svg+xml,a lantern"},
        {"prompt": " DATA:audio/wav;base64,AAAA"},
        {"size": "1024"},
        {"size": "63x64"},
        {"size": "4097x64"},
        {"size": "064x64"},
        {"size": "64X64"},
        {"size": [64, 64]},
        {"count": 0},
        {"count": 9},
        {"count": True},
        {"count": 1.0},
        {"count": "1"},
        {"transparent": "yes"},
        {"transparent": None},
        {"subtype": "odd"},
        {"subtype": []},
        {"references": "rs_1"},
        {"references": ["rs_1"] * 9},
        {"references": [1]},
        {"references": [""]},
        {"seed": 1.5},
        {"seed": 2**63},
        {"model": ""},
        {"Prompt": "x"},
        {"seconds": 3},
        [],
        None,
    ],
)
def test_what_is_not_as_it_should_be_is_named(params: Any) -> None:
    """GN1"""
    whole = {"prompt": "a lantern", **params} if isinstance(params, dict) and params else params

    with pytest.raises(WrongRequest) as caught:
        image_params(whole)

    (error,) = caught.value.facts["errors"]
    name = next(iter(params), "prompt") if isinstance(params, dict) else None
    assert error["path"] == (f"params.{name}" if name else "params")
    assert error["message"]


def test_a_thousand_wrong_names_fit_an_answer() -> None:
    """GN1"""
    with pytest.raises(WrongRequest) as caught:
        image_params({f"{'x' * 1_000}{number}": 1 for number in range(1_000)})

    assert len(json.dumps(caught.value.facts)) < 8_000


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), JSON))
def test_any_json_is_read_or_refused(value: dict[str, Any]) -> None:
    """GN1"""
    try:
        params = image_params(value)
    except WrongRequest:
        return
    assert image_params(json.loads(params.as_json())) == params


def test_a_label_is_the_start_of_the_prompt_on_one_line() -> None:
    params = image_params({"prompt": f"one\n two {'three ' * 40}"})

    assert params.label.startswith("one two three")
    assert len(params.label) == 80
    assert params.label.endswith("…")


@pytest.mark.parametrize(("budget", "provider"), [(1_800, 1_740), (120, 60), (119, 59.5), (1, 0.5)])
def test_time_is_kept_back_from_the_provider(budget: float, provider: float) -> None:
    """GN17"""
    limits = deadlines(budget, started=1_000)

    assert (limits.provider, limits.job) == (1_000 + provider, 1_000 + budget)
