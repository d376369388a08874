"""Compares devhost with the plugins that it replaces: same machine, same kubelet, same questions."""
