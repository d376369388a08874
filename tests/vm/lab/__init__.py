"""What tests in the machine work with: its hardware, its kernel, and a devhost with a kubelet on it."""
