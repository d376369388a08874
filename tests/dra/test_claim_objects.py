"""What is read from a ResourceClaim, and which options its configuration gives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.claims import DRIVER, RESOURCE, CardOptions, Cards, config, result

from devhost.backend import NoOptions, OptionError, option
from devhost.dra.answers import ClaimError, Malformed, OpaqueConfig, read_claim
from devhost.dra.claim_devices import options_for
from devhost.planning.settings import DraTerms, ResourceSettings, Share

ENTRY = ResourceSettings(0, RESOURCE, "cards")


def claim(*results: Any, config: Any = ()) -> dict[str, Any]:
    devices = {"results": [*results], "config": [*config]}
    return {"metadata": {"uid": "u-1"}, "status": {"allocation": {"devices": devices}}}


def opaque(*found: Any) -> tuple[OpaqueConfig, ...]:
    return read_claim(claim(config=found), DRIVER).config


def given_options(
    *found: Any,
    options: object = CardOptions(),
    backend: Any = Cards,
    entry: ResourceSettings = ENTRY,
    allowed: Any = ("mode",),
    request: str = "gpu",
) -> Any:
    entry = replace(entry, dra=DraTerms(claim_options=allowed))
    return options_for(request, opaque(*found), options, backend, entry, RESOURCE)


def error(*found: Any, **more: Any) -> str:
    with pytest.raises(ClaimError) as caught:
        given_options(*found, **more)
    return str(caught.value)


def test_a_result_is_read_with_everything_that_matters():
    found = read_claim(
        claim(
            result(
                "gpu/big",
                "a",
                adminAccess=True,
                shareID="s-1",
                consumedCapacity={f"{DRIVER}/slots": "1"},
                tolerations=[{"key": "k", "operator": "Exists", "effect": "NoExecute"}],
            )
        ),
        DRIVER,
    ).devices[0]
    assert (found.request, found.device) == ("gpu/big", "a")
    assert found.admin and found.share == "s-1" and found.consumed == {f"{DRIVER}/slots": "1"}
    assert found.tolerates("k", "NoExecute") and not found.tolerates("k", "NoSchedule")


def test_only_true_is_admin_access_and_only_pods_are_users():
    body = claim(result("a", "a", adminAccess=False), result("b", "b", adminAccess="no"))
    users = [{"resource": "pods", "name": "one"}, {"resource": "jobs", "apiGroup": "batch", "name": "two"}]
    body["status"]["reservedFor"] = users
    found = read_claim(body, DRIVER)
    assert [one.admin for one in found.devices] == [False, False]
    assert found.pods == ("one",)


def test_a_claim_without_allocation_is_not_allocated():
    assert not read_claim({"metadata": {"uid": "u-1"}}, DRIVER).allocated
    assert not read_claim({"metadata": {"uid": "u-1"}, "status": {"allocation": None}}, DRIVER).allocated


@pytest.mark.parametrize("body", [{}, {"metadata": {}}, {"kind": "Status", "status": "Failure"}])
def test_what_has_no_uid_is_no_claim(body):
    """It would be taken for another claim of the same name, and the claim for one that is gone."""
    with pytest.raises(Malformed, match=r"metadata\.uid of the ResourceClaim is missing"):
        read_claim(body, DRIVER)


promise = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "status",
                    "allocation",
                    "devices",
                    "results",
                    "config",
                    "opaque",
                    "uid",
                    "driver",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
)


@promise
@given(JSON)
def test_an_object_of_another_form_is_an_error_with_its_place(body):
    try:
        read_claim(body, DRIVER)
    except Malformed as error:
        assert "of the ResourceClaim" in str(error) or str(error) == "the ResourceClaim is not an object"


@promise
@given(JSON)
def test_parameters_of_another_form_are_an_error_with_their_place(parameters):
    found = {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": parameters}}
    assert error(found).startswith("config[0].opaque.parameters")


@promise
@given(JSON)
def test_options_of_another_form_are_an_error_with_their_place_or_change_nothing(options):
    if options == {}:
        assert given_options(config(options)) == CardOptions()
    else:
        assert error(config(options)).startswith("config[0].opaque.parameters.options")


def test_without_configuration_the_options_are_those_of_the_resource():
    assert given_options(options=CardOptions(depth=7)) == CardOptions(depth=7)


def test_a_claim_overrides_its_class_in_any_order_and_the_rest_stays():
    found = given_options(
        config({"mode": "fast"}, "FromClaim"),
        config({"mode": "safe", "depth": 4}),
        options=CardOptions(depth=7),
    )
    assert found == CardOptions("fast", 4)


@pytest.mark.parametrize(
    ("requests", "request_", "concerned"),
    [
        ((), "gpu", True),
        (("gpu",), "gpu", True),
        (("gpu",), "gpu/big", True),
        (("gpu/big",), "gpu/big", True),
        (("gpu/small",), "gpu/big", False),
        (("nic",), "gpu", False),
    ],
)
def test_a_configuration_is_for_the_requests_that_it_names(requests, request_, concerned):
    found = given_options(config({"depth": 4}, "FromClass", *requests), request=request_)
    assert found == CardOptions(depth=4 if concerned else 0)


@pytest.mark.parametrize("requests", ["gpu", {}, True])
def test_a_configuration_for_what_is_no_list_of_requests_is_refused(requests):
    """It would be for all of them."""
    with pytest.raises(Malformed, match=r"config\[0\]\.requests of the ResourceClaim is not a list"):
        given_options({**config({"depth": 4}), "requests": requests})


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            config({"mod": "fast"}),
            "config[0].opaque.parameters.options.mod: unknown key (did you mean mode?)",
        ),
        (
            config({"mode": "wild"}),
            'config[0].opaque.parameters.options.mode: must be one of fast, safe, not the text "wild"',
        ),
        (
            config({"depth": "4"}),
            'config[0].opaque.parameters.options.depth: must be a whole number, not the text "4" '
            "(remove the quotes)",
        ),
        (
            config({"depth": True}),
            "config[0].opaque.parameters.options.depth: must be a whole number, not the value true",
        ),
        (
            config({"depth": 4}, "FromClaim"),
            "config[0].opaque.parameters.options.depth: a claim must not set this option (a DeviceClass can "
            f"set it, or dra.claimOptions of {RESOURCE} can allow it)",
        ),
        (config([]), "config[0].opaque.parameters.options: must be a mapping, not an empty list"),
    ],
)
def test_each_wrong_option_is_named_with_its_path(found, text):
    assert error(found) == text


def test_parameters_of_another_kind_are_refused_with_the_path():
    found = config({})
    found["opaque"]["parameters"] |= {"apiVersion": "devhost/v2", "colour": "red"}
    text = error(config({}), found)
    assert "config[1].opaque.parameters.apiVersion: must be devhost/v1" in text
    assert 'config[1].opaque.parameters: unknown key "colour"' in text


def test_errors_of_all_configurations_are_reported_and_not_too_many():
    text = error(config({"a": 1, "b": 2}), config({"c": 3, "d": 4}))
    assert text.count("unknown key") == 3 and text.endswith("; and 1 more")


def test_any_number_of_errors_is_one_line():
    text = error(config({f"key{n}": n for n in range(500)}))
    assert text.count("unknown key") == 3 and "\n" not in text


def test_options_nested_too_deeply_are_an_error():
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert "levels deep" in error(config({"depth": deep}))


def test_a_backend_without_options_takes_none():
    class Plain(Cards):
        ResourceOptions = NoOptions

    assert given_options(config({}), options=None, backend=Plain) is None
    assert error(config({"mode": "fast"}), options=None, backend=Plain) == (
        f"config[0].opaque.parameters.options.mode: unknown key: {RESOURCE} has no options"
    )


@dataclass(frozen=True)
class Strict:
    size: int = option(1, "how much")
    why_alone: str = ""

    def __post_init__(self) -> None:
        if self.size > 8:
            raise OptionError("is more than the card has", key="size", hint="at most 8")
        if self.size < 0:
            raise RuntimeError("the author did not think of this")


class StrictCards(Cards):
    ResourceOptions = Strict


def test_a_backend_that_refuses_a_value_is_quoted_at_its_key():
    text = error(config({"size": 9}), options=Strict(), backend=StrictCards)
    assert text == "config[0].opaque.parameters.options.size: is more than the card has (at most 8)"


def test_a_backend_that_fails_is_named():
    text = error(config({"size": -1}), options=Strict(), backend=StrictCards)
    assert "the resource options of backend cards failed: RuntimeError" in text


@dataclass(frozen=True)
class Named:
    size: int = option(1, "how much")
    resource: str = field(default="", init=False)

    def named(self, resource: str) -> Named:
        if self.size > 8:
            raise OptionError(f"is too much for {resource}", key="size")
        made = replace(self)
        object.__setattr__(made, "resource", resource)
        return made


class NamedCards(Cards):
    ResourceOptions = Named


@pytest.mark.parametrize("options", [{}, {"size": 4}])
def test_options_that_a_claim_changes_keep_the_name_of_their_entry(options):
    found = given_options(config(options), options=Named().named(RESOURCE), backend=NamedCards)
    assert found == Named(options.get("size", 1)).named(RESOURCE)


def test_options_that_the_name_of_their_entry_rules_out_are_refused():
    text = error(config({"size": 9}), options=Named().named(RESOURCE), backend=NamedCards)
    assert text == f"config: is too much for {RESOURCE}"


def test_options_that_rule_out_sharing_are_refused_for_a_shared_resource():
    found = config({"whyAlone": "the queue is for one"})
    assert given_options(found, options=Strict(), backend=StrictCards).why_alone
    text = error(found, options=Strict(), backend=StrictCards, entry=replace(ENTRY, share=Share(2)))
    assert text == f"config: {RESOURCE} is shared: the queue is for one"
