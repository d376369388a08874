"""devhost beside the plugins that it stands in for: one machine, one kubelet, the same questions."""
