"""The virtual machine of ``make vm``: made, booted, and gone afterwards. Runs on the host."""
