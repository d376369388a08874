"""The classes of services that protoc makes, for simulated kubelets and drivers."""
