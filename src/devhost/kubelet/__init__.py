"""The kubelet's side of devhost: the protocol, the plugin servers, registration."""
