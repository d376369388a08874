from devhost_testing.contract import BackendContract
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from devhost_watchdog import Watchdog, WatchdogOptions


def timers(root):
    """A timer on the PCI bus, one of the firmware without its node, and a software timer."""
    tree = Tree(root)
    places = ("pci0000:00/0000:00:1f.4", "platform/wdat_wdt", "virtual")
    for number, (place, timeout) in enumerate(zip(places, ("30", "300", "60"), strict=True)):
        name = f"watchdog{number}"
        files = {"identity": f"timer {number}", "timeout": timeout, "nowayout": "0"}
        tree.device(f"{place}/watchdog/{name}", "watchdog", name, f"246:{number}", files)
    (root / "dev/watchdog1").unlink()
    return tree


class TestWatchdog(BackendContract):
    backend = Watchdog
    options = WatchdogOptions()

    def tree(self, root):
        timers(root)


async def test_a_pod_finds_its_timer_at_the_configured_path(tmp_path):
    async with Node(tmp_path, Watchdog) as node:
        timers(node.root)
        node.configure(
            "backends: {watchdog: {containerPath: /dev/timer}}\n"
            "resources: [{name: example.com/watchdog, backend: watchdog, where: {timeout: '-30'}}]"
        )
        async with node.served({"example.com/watchdog": 1}):
            started = await node.container({"example.com/watchdog": 1})
            assert [(one.host_path, one.container_path) for one in started.devices] == [
                ("/dev/watchdog0", "/dev/timer")
            ]
