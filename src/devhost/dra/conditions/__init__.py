"""The conditions that devhost keeps of objects at the API server: of its Node, and of devices in claims."""
