"""Resource names: what devhost accepts, the kubelet accepts."""

from __future__ import annotations

import errno
import re
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devhost.backend.model import MAX_STRING, MAX_STRINGS, too_large
from devhost.planning import naming

# a busy machine must not fail the tests
patient = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=3 * settings().max_examples,
)


def kubelet_accepts(name: str) -> bool:
    """The kubelet's rule in other words: one expression for `requests.<name>`, three for the exceptions."""
    label = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
    qualified = re.compile(
        rf"(?=.{{1,253}}/){label}(?:\.{label})*/(?=.{{1,63}}\Z)(?:[A-Za-z0-9][-\w.]*)?[A-Za-z0-9]\Z", re.A
    )
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return qualified.match(f"requests.{name}") is not None


pieces = st.sampled_from(
    [
        "a",
        "Z",
        "0",
        "-",
        ".",
        "_",
        "/",
        "//",
        " ",
        "\n",
        "é",
        "requests.",
        "kubernetes.io/",
        "x" * 62,
        "d" * 120,
    ]
)
almost_names = st.one_of(
    st.lists(pieces, max_size=6).map("".join),
    st.tuples(st.lists(pieces, min_size=1, max_size=4), st.lists(pieces, max_size=4)).map(
        lambda both: "".join(both[0]) + "/" + "".join(both[1])
    ),
    st.text(max_size=30),
    st.builds(
        lambda domain, n, name, m: (domain * n)[:n] + "/" + (name * m)[:m],
        st.sampled_from(["a", "0", "a-b", "a.b", "a.", "-"]),
        st.one_of(st.integers(1, 250), st.integers(242, 246)),
        st.sampled_from(["a", "A-b", "x.y", "0_", "-"]),
        st.one_of(st.integers(1, 66), st.integers(62, 64)),
    ),
)


@patient
@given(almost_names)
def test_a_name_is_accepted_exactly_when_the_kubelet_accepts_it(name: str) -> None:
    assert (naming.problem(name) == "") == kubelet_accepts(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("serial", "no slash"),
        ("a/b/c", "more than one slash"),
        ("kubernetes.io/x", "kubernetes.io"),
        ("foo.kubernetes.io/x", "kubernetes.io"),
        ("requests.a.b/c", "requests."),
        ("/c", "illegal domain"),
        ("A.b/c", "illegal domain"),
        ("a..b/c", "illegal domain"),
        ("a_b/c", "illegal domain"),
        ("a.b/", "after the slash"),
        ("a.b/-c", "after the slash"),
        ("a.b/" + "c" * 64, "at most 63"),
        ("a" * 245 + "/c", "at most 244"),
    ],
)
def test_a_bad_name_is_refused_with_its_reason(name: str, reason: str) -> None:
    assert reason in naming.problem(name)
    assert reason in naming.template_problem(name)


@pytest.mark.parametrize("name", ["a/b", "rdma/hca", "intel.com/sriov_dpdk", "a" * 244 + "/" + "C" * 63])
def test_a_good_name_is_accepted(name: str) -> None:
    assert naming.problem(name) == ""


def test_the_reason_stays_short_for_a_name_of_any_length() -> None:
    assert len(naming.problem("x" * 100_000 + "/" + "y" * 100_000)) < 400


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("a.b/{x", "without its partner"),
        ("a.b/x}", "without its partner"),
        ("a.b/{{x}}", "without its partner"),
        ("a.b/{}", "empty braces"),
        ("{x}/y", "before the slash"),
        ("a.b/ {x}", "illegal part"),
        ("a.b/-{x}", "illegal part"),
        ("a.b/" + "c" * 63 + "{x}", "at most 63"),
    ],
)
def test_a_bad_template_is_refused_with_its_reason(template: str, reason: str) -> None:
    assert reason in naming.template_problem(template)


def test_a_template_names_its_fields_in_order() -> None:
    assert naming.fields("nvidia.com/mig-{profile}-{vendor}") == ("profile", "vendor")
    assert naming.fields("nvidia.com/gpu") == ()


def test_a_device_without_the_attribute_gets_no_name() -> None:
    assert naming.expand("a.b/{x}", {"y": "1"}) is None


def test_values_are_made_legal() -> None:
    assert naming.expand("nvidia.com/mig-{profile}", {"profile": "1g.10gb+me"}) == "nvidia.com/mig-1g.10gb.me"
    assert naming.expand("a.b/{x}", {"x": "Intel Corp. (R)"}) == "a.b/Intel-Corp.--R"
    assert naming.expand("a.b/n{x}", {"x": 3}) == "a.b/n3"


def test_a_value_with_nothing_legal_in_it_gives_no_name() -> None:
    assert naming.expand("a.b/{x}", {"x": "***"}) is None


def test_long_values_that_differ_only_at_the_end_keep_different_names() -> None:
    one, other = (naming.expand("a.b/{x}", {"x": "v" * 80 + tail}) for tail in "12")
    assert one != other


def test_a_name_that_was_cut_has_one_hyphen_before_its_hash() -> None:
    name = naming.expand("a.b/{x}", {"x": "v" * 53 + "---" + "w" * 20})
    assert name is not None
    assert re.fullmatch(r"a\.b/v{53}-[0-9a-f]{8}", name)


values = st.builds(
    lambda start, repeated, n, end: start + repeated * n + end,
    st.text(max_size=6),
    st.text(max_size=2),
    st.integers(0, 40),
    st.text(max_size=6),
)
templates = st.sampled_from(["a.b/{x}", "a.b/p-{x}", "a.b/{x}.{y}", "a.b/{y}{x}s"])


@patient
@given(templates, values, st.integers())
def test_every_expansion_is_a_name_the_kubelet_accepts(template: str, x: str, y: int) -> None:
    name = naming.expand(template, {"x": x, "y": y})
    assert name is None or kubelet_accepts(name)


@pytest.mark.parametrize(
    ("name", "resource", "variable"),
    [
        ("PCIDEVICE_{RESOURCE}", "intel.com/sriov_dpdk", "PCIDEVICE_INTEL_COM_SRIOV_DPDK"),
        ("PCIDEVICE_{RESOURCE}_INFO", "a.b/c-d.e", "PCIDEVICE_A_B_C_D_E_INFO"),
        ("PCIDEVICE_{RESOURCE-}", "a-b.c/d-e.f", "PCIDEVICE_A-B_C_D-E_F"),
        ("{RESOURCE}_{RESOURCE-}", "a.b/c-d", "A_B_C_D_A_B_C-D"),
        ("{RESOURCE}", "1a.com/2b", "1A_COM_2B"),
        ("PLAIN", "a.b/c", "PLAIN"),
    ],
)
def test_a_variable_can_bear_the_name_of_the_resource(name: str, resource: str, variable: str) -> None:
    assert naming.variable_problem(name) == ""
    assert naming.variable(name, resource) == variable


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "an unusable variable name"),
        ("A=B", "an unusable variable name"),
        ("A\0", "an unusable variable name"),
        ("A_{resource}", "a brace that is neither {RESOURCE} nor {RESOURCE-} in the variable name"),
        ("{RESOURCE", "a brace that is neither {RESOURCE} nor {RESOURCE-} in the variable name"),
        ("{{RESOURCE}}", "a brace that is neither {RESOURCE} nor {RESOURCE-} in the variable name"),
    ],
)
def test_other_braces_in_the_name_of_a_variable_are_refused(name: str, problem: str) -> None:
    assert naming.variable_problem(name) == problem


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("nvidia.com/gpu", "gpu.nvidia.com"),
        ("nvidia.com/mig-1g.5gb", "mig-1g.5gb.nvidia.com"),
        ("example.com/Serial_A", "serial-a-e0c8f441.example.com"),
        ("example.com/a-.b", "a.b-bfc923b6.example.com"),
    ],
)
def test_the_class_of_a_resource_is_named_after_it(resource: str, name: str) -> None:
    assert naming.device_class(resource) == name


def test_a_class_whose_words_do_not_fit_is_named_by_its_hash_alone() -> None:
    domain = "a" * naming.MAX_DOMAIN

    assert re.fullmatch(rf"[0-9a-f]{{8}}\.{domain}", naming.device_class(f"{domain}/serial-port"))


names = st.builds(
    lambda domain, n, rest: f"{(domain * n)[:n]}/{rest}",
    st.sampled_from(["a", "0", "b.c", "d-e.f"]).map(lambda domain: f"{domain}x"),
    st.one_of(st.integers(1, 20), st.integers(240, naming.MAX_DOMAIN)),
    st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True),
).filter(lambda name: not naming.problem(name))


@patient
@given(names)
def test_every_class_is_a_dns_subdomain_and_belongs_to_one_spelling(name: str) -> None:
    label = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
    domain, _, rest = name.partition("/")
    shouted = f"{domain}/{rest.upper()}"

    assert re.fullmatch(rf"(?=.{{1,253}}\Z){label}(?:\.{label})*", naming.device_class(name))
    assert (naming.device_class(name) == naming.device_class(shouted)) == (name == shouted)


def test_the_attribute_of_a_long_name_is_its_beginning_and_a_hash() -> None:
    domain = "example.com/"
    fits, long = domain + "a" * 52, domain + "a" * 53

    assert naming.resource_attribute(fits) == fits
    assert re.fullmatch(rf"{domain}a{{43}}-[0-9a-f]{{8}}", naming.resource_attribute(long))
    assert naming.resource_attribute(long) != naming.resource_attribute(f"{long}b")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("0000:3b:00.0", "0000-3b-00-0"),
        ("10000:01:00.0", "10000-01-00-0"),
        ("card0", "card0"),
        ("0000-3b-00-0", "0000-3b-00-0-[0-9a-f]{8}"),
        ("card-0a1b2c3d", "card-0a1b2c3d-[0-9a-f]{8}"),
        ("GPU-5a", "gpu-5a-[0-9a-f]{8}"),
        ("/dev/kvm", "dev-kvm-[0-9a-f]{8}"),
        ("::", "id-[0-9a-f]{8}"),
        ("a" * 63, "a{63}"),
        ("a" * 64, "a{54}-[0-9a-f]{8}"),
        ("a" * 53 + "/" * 10 + "b", "a{53}-[0-9a-f]{8}"),
    ],
)
def test_a_slug_is_readable_and_ends_in_a_hash_if_it_does_not_show_the_whole_text(
    text: str, label: str
) -> None:
    assert re.fullmatch(label, naming.slug(text))


def test_a_slug_is_as_short_as_demanded() -> None:
    assert re.fullmatch("gpu-aaaaaaa-[0-9a-f]{8}", naming.slug("GPU-" + "a" * 40, 20))
    assert naming.slug("0000:3b:00.0", 12) == "0000-3b-00-0"
    assert re.fullmatch("100-[0-9a-f]{8}", naming.slug("10000:3b:00.0", 12))


@pytest.mark.parametrize("longer", [0, 1])
def test_the_longest_variable_is_the_longest_that_linux_takes(longer: int) -> None:
    env = {"A": "x" * (MAX_STRING - len("A=\0") + longer)}
    taken = True
    try:
        subprocess.run(["/bin/true"], env=env, check=True)
    except OSError as error:
        assert error.errno == errno.E2BIG
        taken = False
    assert (too_large(env) == "") is taken is (longer == 0)


def test_all_variables_together_have_a_limit_too() -> None:
    each = {f"A{n:03}": "x" * (8192 - len("A000=\0") - 8) for n in range(MAX_STRINGS // 8192)}
    assert too_large(each) == ""
    assert too_large({**each, "B": ""}) == "its variables have 2097163 bytes, and Linux takes at most 2097152"
