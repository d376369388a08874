"""DeviceClasses: which devices they select, and by which name pods without claims may request them."""

from __future__ import annotations

import pytest

from devhost.cli.dra import ClassesOverlap, device_classes
from devhost.planning.naming import resource_attribute
from devhost.planning.settings import DraTerms, ResourceSettings, Serve

DRIVER = "devhost.example.com"
NO_TERMS = DraTerms()


def entry(name: str, terms: DraTerms = NO_TERMS) -> tuple[str, ResourceSettings]:
    driver = terms.driver or DRIVER
    return name, ResourceSettings(0, name, "toy", serve=Serve.DRA, dra=terms, driver=driver)


def test_a_class_is_named_after_its_resource_and_selects_its_devices_of_this_driver_only() -> None:
    (found,) = device_classes([entry("example.com/serial")])

    assert found.manifest() == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "serial.example.com"},
        "spec": {
            "selectors": [
                {
                    "cel": {
                        "expression": 'device.driver == "devhost.example.com" && '
                        'has(device.attributes["devhost.example.com"].resource) && '
                        'device.attributes["devhost.example.com"].resource == "example.com/serial"'
                    }
                }
            ]
        },
    }


def test_a_class_has_the_extended_name_and_the_name_that_the_entry_gives() -> None:
    (found,) = device_classes([entry("example.com/serial", DraTerms("ports", True))])

    assert found.manifest()["metadata"] == {"name": "ports"}
    assert found.manifest()["spec"]["extendedResourceName"] == "example.com/serial"


def test_a_class_of_several_resources_selects_the_devices_of_all() -> None:
    both = [entry("a.b/one", DraTerms("c.d")), entry("a.b/two", DraTerms("c.d"))]

    (found,) = device_classes(both)

    assert found.expression().endswith('.resource in ["a.b/one", "a.b/two"]')
    assert "extendedResourceName" not in found.manifest()["spec"]


def test_a_class_of_resources_of_two_drivers_selects_the_devices_of_both() -> None:
    both = [entry("a.b/one", DraTerms("c.d")), entry("a.b/two", DraTerms("c.d", driver="e.f"))]

    (found,) = device_classes(both)

    (one,), (two,) = (device_classes([single]) for single in both)
    assert found.expression() == f"({one.expression()}) || ({two.expression()})"
    assert 'device.driver == "e.f" && has(device.attributes["e.f"].resource)' in two.expression()


@pytest.mark.parametrize("extended", [(True, False), (False, True), (True, True)])
def test_an_extended_name_of_a_class_of_several_resources_is_refused(extended: tuple[bool, bool]) -> None:
    names = "a.b/one", "a.b/two"
    both = [entry(name, DraTerms("c.d", wanted)) for name, wanted in zip(names, extended, strict=True)]

    with pytest.raises(ClassesOverlap) as caught:
        device_classes(both)

    assert (caught.value.name, caught.value.resources) == ("c.d", names)


def test_one_class_of_the_names_of_two_resources_is_refused_unless_an_entry_names_it() -> None:
    both = [entry("b/a.c"), entry("c.b/a")]
    with pytest.raises(ClassesOverlap) as caught:
        device_classes(both)
    assert (caught.value.name, caught.value.resources) == ("a.c.b", ("b/a.c", "c.b/a"))

    (found,) = device_classes([both[0], entry("c.b/a", DraTerms("a.c.b"))])
    assert found.expression().endswith('.resource in ["b/a.c", "c.b/a"]')
    assert [one.name for one in device_classes([both[0], entry("c.b/a", DraTerms("x.y"))])] == [
        "a.c.b",
        "x.y",
    ]


def test_two_entries_of_one_name_make_one_class() -> None:
    (found,) = device_classes([entry("a.b/x"), entry("a.b/x", DraTerms(extended_name=True))])

    assert (found.resources, found.extended_name) == ({DRIVER: ["a.b/x"]}, "a.b/x")


def test_a_name_longer_than_an_attribute_is_selected_by_what_the_slices_carry() -> None:
    name = "example.com/" + "a" * 63

    (found,) = device_classes([entry(name, DraTerms(extended_name=True))])

    assert found.expression().endswith(f'.resource == "{resource_attribute(name)}"')
    assert found.extended_name == name
