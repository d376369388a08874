"""The classes of gRPC services, for simulated kubelets and drivers."""
