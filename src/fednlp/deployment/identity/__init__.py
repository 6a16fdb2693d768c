"""Identities: certificates, tokens, names, and the register of sites."""
