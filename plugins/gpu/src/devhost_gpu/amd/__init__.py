"""AMD GPUs: their cards, their health, their compute topology."""
