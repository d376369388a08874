"""One rig for each layer, which all tests of that layer use."""
