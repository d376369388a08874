"""Which side an entry is on, and its terms for Dynamic Resource Allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from kit.backend import Plain

from devhost.backend import option
from devhost.backend.errors import ConfigError, Diagnostic
from devhost.backend.model import Cause
from devhost.config import loads
from devhost.config.difference import difference
from devhost.config.language import Taints
from devhost.config.reader import keys
from devhost.discovery.catalog import Catalog, Installed
from devhost.planning.settings import MAX_DRIVERS, DraTerms, Effect, Serve, Settings

Read = Callable[[str], Settings]
Complain = Callable[[str], tuple[Diagnostic, ...]]

DRIVER = "devhost.example.com"


def file(*entries: str, driver: str = DRIVER) -> str:
    """A configuration with this driver and these entries of the card backend, from line 4 on."""
    lines = "".join(f"- {{backend: card, {entry}}}\n" for entry in entries)
    return f"version: 1\ndra: {{driver: {driver}}}\nresources:\n{lines}"


def test_an_entry_is_served_as_a_plugin_and_a_file_without_dra_has_no_driver(read: Read) -> None:
    settings = read("{version: 1, resources: [{name: a.b/c, backend: card}]}")

    assert settings.dra_driver == ""
    assert [(entry.serve, entry.dra) for entry in settings.resources] == [(Serve.PLUGIN, DraTerms())]


def test_the_driver_the_side_and_the_terms_are_read(read: Read) -> None:
    settings = read(file("name: a.b/c, serve: dra, dra: {class: c.example.com, extendedName: true}"))

    (entry,) = settings.resources
    assert (settings.dra_driver, entry.serve) == (DRIVER, Serve.DRA)
    assert entry.dra == DraTerms("c.example.com", True, ())


def test_metadata_is_off_unless_the_file_asks_for_it(read: Read) -> None:
    text = file("name: a.b/c, serve: dra")
    plain, wanted = read(text), read(text.replace(DRIVER, f"{DRIVER}, metadata: true"))
    assert (plain.dra_metadata, wanted.dra_metadata) == (False, True)
    assert difference(plain, wanted) == "dra changed; 1 unchanged" and not difference(plain, plain)


def test_the_status_of_claims_is_off_unless_the_file_asks_for_it(read: Read) -> None:
    text = file("name: a.b/c, serve: dra")
    plain, wanted = read(text), read(text.replace(DRIVER, f"{DRIVER}, status: true"))
    assert (plain.dra_status, wanted.dra_status) == (False, True)
    assert difference(plain, wanted) == "dra changed; 1 unchanged" and not difference(plain, plain)


def test_an_entry_has_an_effect_for_each_cause_that_it_names(read: Read) -> None:
    (entry,) = read(
        file("name: a.b/c, serve: dra, dra: {taints: {xid: NoExecute, reported: None}}")
    ).resources
    assert entry.dra.taints == {Cause.XID: Effect.NO_EXECUTE, Cause.REPORTED: Effect.NONE}
    (plain,) = read(file("name: a.b/c, serve: dra")).resources
    assert plain.dra.taints == {}


def test_every_cause_has_a_key() -> None:
    assert set(keys(Taints)) == {cause.value for cause in Cause}


@pytest.mark.parametrize(
    ("taints", "message"),
    [("fire: NoExecute", "unknown key"), ("xid: PreferNoSchedule", "must be one of")],
)
def test_another_cause_or_effect_is_an_error(complaints: Complain, taints: str, message: str) -> None:
    (found,) = complaints(file(f"name: a.b/c, serve: dra, dra: {{taints: {{{taints}}}}}"))
    assert message in found.message and found.path.startswith("resources[0].dra.taints")


def test_an_entry_moves_by_one_word(read: Read) -> None:
    text = file(
        "name: a.b/c, serve: dra, inject: direct, prefer: pack, whenEmpty: register, topology: false, "
        "takeOver: true, dra: {class: c.example.com, extendedName: true}"
    )

    there, back = read(text), read(text.replace("serve: dra", "serve: plugin"))

    assert [entry.serve for settings in (there, back) for entry in settings.resources] == ["dra", "plugin"]
    assert there.resources[0].dra == back.resources[0].dra


def test_an_entry_may_name_another_driver_than_the_file(read: Read) -> None:
    settings = read(
        file(
            "name: a.b/c, where: {vendor: c}, serve: dra",
            "name: a.b/d, where: {vendor: d}, serve: dra, dra: {driver: gpu.nvidia.com}",
            "name: a.b/e, where: {vendor: e}, serve: plugin, dra: {driver: gpu.amd.com}",
            "name: a.b/f, where: {vendor: f}, serve: dra, dra: {driver: gpu.nvidia.com}",
        )
    )
    assert [entry.driver for entry in settings.resources] == [DRIVER, "gpu.nvidia.com", "", "gpu.nvidia.com"]
    assert settings.drivers == (DRIVER, "gpu.nvidia.com")


def test_another_driver_of_the_file_changes_no_entry_and_one_of_an_entry_changes_it(read: Read) -> None:
    plain, renamed = (read(file("name: a.b/c, serve: dra", driver=driver)) for driver in (DRIVER, "d.e"))
    own = read(file("name: a.b/c, serve: dra, dra: {driver: d.e}"))
    assert difference(plain, renamed) == "dra changed; 1 unchanged"
    assert difference(plain, own) == "changed a.b/c (dra); 0 unchanged"


def test_an_entry_below_one_of_another_driver_that_takes_every_device_is_refused(
    complaints: Complain,
) -> None:
    shared = "serve: dra, exclusive: false"
    (found,) = complaints(file(f"name: a.b/c, {shared}", f"name: a.b/d, {shared}, dra: {{driver: d.e}}"))
    assert found.message == "this can never get a device: the entry in line 4 takes them all first"
    assert found.hint == "put the narrower entry first: only one driver publishes a device"


def test_a_file_has_at_most_sixteen_drivers(read: Read, complaints: Complain) -> None:
    entries = [
        f"name: a.b/c{n}, where: {{vendor: v{n}}}, serve: dra, dra: {{driver: d{n}.e}}"
        for n in range(MAX_DRIVERS + 2)
    ]
    assert len(read(file(*entries[:MAX_DRIVERS])).drivers) == MAX_DRIVERS == 16

    (found,) = complaints(file(*entries))
    assert found.path == "resources[16].dra.driver"
    assert found.message == "a file has at most 16 DRA drivers, and this is one more"


def test_terms_may_stay_in_a_file_without_a_driver(read: Read) -> None:
    (entry,) = read(
        "{version: 1, resources: [{name: a.b/c, backend: card, dra: {extendedName: true}}]}"
    ).resources

    assert entry.dra == DraTerms(extended_name=True)


@pytest.mark.parametrize("driver", ["d", "devhost.example.com", "0-a.b9", "d" * 63])
def test_a_driver_name_of_kubernetes_is_accepted(read: Read, driver: str) -> None:
    assert read(file(driver=f"'{driver}'").replace("resources:", "resources: []")).dra_driver == driver


@pytest.mark.parametrize(
    "driver", ["Devhost.example.com", "d" * 64, "a..b", "-a", "a-", ".a", "a.", "a_b", "a/b", "", "a\\n"]
)
def test_another_driver_name_is_refused_with_the_rule(complaints: Complain, driver: str) -> None:
    (found,) = complaints(file("name: a.b/c, serve: dra", driver=f'"{driver}"'))

    assert (found.line, found.column, found.path) == (2, 15, "dra.driver")
    assert found.message.startswith(
        "must be a DNS subdomain of at most 63 characters (lower-case letters, digits, '-' and '.', with a "
        "letter or digit at both ends of each part), not "
    )
    assert found.hint == "for example devhost.example.com"


@pytest.mark.parametrize(
    ("dra", "said"),
    [
        ("{}", "2:6: dra: the key driver is required (for example driver: devhost.example.com)"),
        ("", "2:5: dra: must be a mapping, not an empty value (write {driver: devhost.example.com})"),
        ("a.b", '2:6: dra: must be a mapping, not the text "a.b" (write {driver: a.b})'),
        (
            "on",
            "2:6: dra: must be a mapping, not on, which YAML reads as true or false "
            "(write {driver: devhost.example.com})",
        ),
        ("{driver: 4}", '2:15: dra.driver: must be text, not the number 4 (put it in quotes: "4")'),
        (
            "{driver: a.b, drivers: {gpu: c.d}}",
            '2:20: dra: unknown key "drivers" (each entry can name its driver: dra: {driver: gpu.nvidia.com} '
            "under resources)",
        ),
        ("{driver: a.b, drvier: c}", '2:20: dra: unknown key "drvier" (did you mean driver?)'),
        (
            "{driver: a.b, extendedName: true}",
            '2:20: dra: unknown key "extendedName" (it belongs to an entry: dra under resources)',
        ),
    ],
)
def test_a_faulty_dra_of_the_file_is_refused_once(complaints: Complain, dra: str, said: str) -> None:
    text = f"version: 1\ndra: {dra}\nresources: [{{name: a.b/c, backend: card, serve: dra}}]"

    assert [str(found) for found in complaints(text)] == [f"f.yaml:{said}"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "serve: both",
            '4:39: resources[0].serve: must be one of plugin, dra, not the text "both" '
            "(a device is never on both sides; make two entries with different devices)",
        ),
        (
            "serve: dar",
            '4:39: resources[0].serve: must be one of plugin, dra, not the text "dar" (did you mean dra?)',
        ),
        ("sreve: dra", '4:32: resources[0]: unknown key "sreve" (did you mean serve?)'),
        (
            "dra: {metadata: true}",
            '4:38: resources[0].dra: unknown key "metadata" (it belongs to dra at the top level of the file)',
        ),
        (
            "dra: {claimOptions: mode}",
            '4:52: resources[0].dra.claimOptions: must be a list, not the text "mode" '
            "(put it in brackets: [mode])",
        ),
        (
            "dra: {claimOptions: off}",  # [off] would be wrong as well
            "4:52: resources[0].dra.claimOptions: must be a list, not off, which YAML reads as true or false",
        ),
        (
            "dra: {extendName: true}",
            '4:38: resources[0].dra: unknown key "extendName" (did you mean extendedName?)',
        ),
        (
            "dra: {driver: A.b}",
            "4:46: resources[0].dra.driver: must be a DNS subdomain of at most 63 characters (lower-case "
            "letters, digits, '-' and '.', with a letter or digit at both ends of each part), not \"A.b\" "
            "(for example devhost.example.com)",
        ),
        (
            "dra: {class: Serial}",
            "4:45: resources[0].dra.class: must be a DNS subdomain of at most 253 characters (lower-case "
            "letters, digits, '-' and '.', with a letter or digit at both ends of each part), not \"Serial\" "
            "(for example serial.example.com)",
        ),
        (
            "dra: {extendedName: 'true'}",
            '4:52: resources[0].dra.extendedName: must be true or false, not the text "true" (write true)',
        ),
        (
            "serve: dra, share: {replicas: 2, of: all}",
            "4:69: resources[0].share.of: claims cannot get all devices together from one entry (remove "
            "it, as a claim with allocationMode: All gets every device; or set serve: plugin)",
        ),
        (
            "serve: dra, share: {maxPerContainer: 1}",
            "4:69: resources[0].share.maxPerContainer: has no effect with serve: dra (remove "
            "it, as Kubernetes has no such limit for claims; or set serve: plugin)",
        ),
        (
            "dra: {claimOptions: [mode]}",
            '4:53: resources[0].dra.claimOptions[0]: backend card adds no key "mode" to entries '
            "(there are no keys to choose from)",
        ),
    ],
)
def test_a_faulty_entry_is_refused_at_its_key_with_a_hint(
    complaints: Complain, entry: str, said: str
) -> None:
    assert [str(found) for found in complaints(file(f"name: a.b/c, {entry}"))] == [f"f.yaml:{said}"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("name: 'a.b/{vendor}'", "devices that exclude each other need one name (write a name without {…})"),
        ("name: a.b/c, exclusive: false", "cannot be together with exclusive: false (remove one of the two)"),
        (
            "name: a.b/c, share: {replicas: 2}",
            "cannot be together with share.replicas (remove one of the two)",
        ),
        (
            "name: a.b/c, share: {overrides: [{where: {vendor: x}, replicas: 2}]}",
            "cannot be together with share.replicas (remove one of the two)",
        ),
        ("name: a.b/c, share: {of: vendor}", "cannot be together with share.of (remove one of the two)"),
    ],
)
def test_counters_are_of_one_pool_and_of_devices_that_are_given_once(
    complaints: Complain, read: Read, entry: str, said: str
) -> None:
    (found,) = complaints(file(f"{entry}, serve: dra, dra: {{counters: true}}"))
    assert str(found).partition(": ")[2] == f"resources[0].dra.counters: {said}"
    (plugin,) = read(file(f"{entry}, serve: plugin, dra: {{counters: true}}")).resources
    assert not plugin.counts


def test_counters_are_of_devices_that_claims_do_not_share_by_amount(complaints: Complain) -> None:
    share = "share: {capacity: {size: {total: 8, min: 1}}, limit: none}"
    (found,) = complaints(file(f"name: a.b/c, {share}, serve: dra, dra: {{counters: true}}"))
    said = "cannot be together with share.capacity (remove one of the two)"
    assert str(found).partition(": ")[2] == f"resources[0].dra.counters: {said}"


def test_serve_dra_needs_a_driver(complaints: Complain) -> None:
    (found,) = complaints("version: 1\nresources:\n- {name: a.b/c, backend: card, serve: dra}\n")

    assert str(found) == (
        "f.yaml:3:39: resources[0].serve: the file names no DRA driver "
        "(add dra: {driver: devhost.example.com} at the top level)"
    )


@pytest.mark.parametrize("serve", ["plugin", "dra"])
def test_one_class_for_the_names_of_a_template_is_refused(complaints: Complain, serve: str) -> None:
    (found,) = complaints(file(f"name: 'a.b/{{vendor}}', serve: {serve}, dra: {{class: c.d}}"))

    assert found.path == "resources[0].dra.class"
    assert found.message == "one class cannot be for all names that a template makes"
    assert found.hint == "remove it: each name gets its own class, for example serial-a.example.com"


def test_a_template_may_have_extended_names(read: Read) -> None:
    (entry,) = read(file("name: 'a.b/{vendor}', serve: dra, dra: {extendedName: true}")).resources

    assert entry.dra.extended_name


SELECT = "where: {{vendor: {0}}}, serve: {1}, dra: {{class: c.d, extendedName: {2}}}"


def pair(first: str, second: str) -> str:
    return file(f"name: a.b/one, {first}", f"name: a.b/two, {second}")


def test_a_class_with_an_extended_name_is_of_one_entry_only(complaints: Complain) -> None:
    for first, second in (("true", "true"), ("true", "false"), ("false", "true")):
        (found,) = complaints(pair(SELECT.format("x", "dra", first), SELECT.format("y", "dra", second)))

        assert (found.line, found.path) == (5, "resources[1].dra")
        assert found.message == (
            'the class "c.d" is also that of the entry in line 4, and a class with extendedName has one entry'
        )
        assert found.hint == "give each entry its own class, or remove extendedName"


def test_a_second_resource_of_whose_name_the_same_class_is_made_is_refused(
    complaints: Complain, read: Read
) -> None:
    second = "name: c.b/a, where: {vendor: y}, serve: dra"
    first = "name: b/a.c, where: {vendor: x}, serve: dra"
    (found,) = complaints(file(first, second))
    assert (found.line, found.path) == (5, "resources[1].name")
    assert found.message == 'its class would be "a.c.b", as that of "b/a.c" in line 4'
    assert found.hint == "set dra.class of this entry to another name"
    for named in ("x.y", "a.c.b"):
        assert len(read(file(first, f"{second}, dra: {{class: {named}}}")).resources) == 2


def test_the_class_that_is_made_from_a_name_counts_as_well(complaints: Complain) -> None:
    (found,) = complaints(
        pair(
            "serve: dra, where: {vendor: x}",
            "serve: dra, where: {vendor: y}, dra: {class: one.a.b, extendedName: true}",
        )
    )

    assert 'the class "one.a.b" is also that of the entry in line 4' in found.message


@pytest.mark.parametrize(("second", "extended"), [("dra", "false"), ("plugin", "true")])
def test_entries_may_share_a_class_without_an_extended_name(read: Read, second: str, extended: str) -> None:
    one = SELECT.format("x", "dra", "false" if second == "dra" else "true")

    settings = read(pair(one, SELECT.format("y", second, extended)))

    assert [entry.dra.device_class for entry in settings.resources] == ["c.d", "c.d"]


def test_an_earlier_entry_of_the_other_side_takes_the_devices_even_if_neither_is_exclusive(
    read: Read, complaints: Complain
) -> None:
    shared = "exclusive: false"
    assert len(read(pair(f"{shared}, serve: dra", f"{shared}, serve: dra")).resources) == 2

    (found,) = complaints(pair(f"{shared}, serve: dra", shared))

    assert found.message == "this can never get a device: the entry in line 4 takes them all first"
    assert found.hint == "put the narrower entry first: a device is never on both sides"


@dataclass(frozen=True)
class TuneOptions:
    """What an entry of the tune backend can have."""

    mode: str = option("fast", "Which way.")
    time_slice: int = option(1, "How long.")


class Tune(Plain):
    name = "tune"
    ResourceOptions: ClassVar[type] = TuneOptions
    attributes: ClassVar[Mapping[str, Any]] = {}


def tuned(claim_options: str) -> Settings:
    catalog = Catalog({"tune": Installed(Tune, "devhost-tune", "1.0", ("devhost_backends",))})
    entry = f"{{name: a.b/c, backend: tune, mode: safe, serve: dra, dra: {{claimOptions: {claim_options}}}}}"
    text = f"{{version: 1, dra: {{driver: {DRIVER}}}, resources: [{entry}]}}"
    return loads(text, "f.yaml", lambda _paths, _wanted: catalog)


def test_claims_may_set_the_keys_of_the_backend_that_the_entry_names() -> None:
    (entry,) = tuned("[timeSlice, mode]").resources

    assert entry.dra.claim_options == ("timeSlice", "mode")
    assert entry.options == TuneOptions("safe")


def test_claims_may_not_set_what_is_no_key_of_the_backend() -> None:
    with pytest.raises(ConfigError) as caught:
        tuned("[mode, timeslice, inject]")

    first, second = caught.value.diagnostics
    assert (first.path, first.hint) == ("resources[0].dra.claimOptions[1]", "did you mean timeSlice?")
    assert first.message == 'backend tune adds no key "timeslice" to entries'
    assert (second.path, second.hint) == ("resources[0].dra.claimOptions[2]", "known keys: mode, timeSlice")
