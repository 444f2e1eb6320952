"""Ansible, ssh and Vault: no other package uses them."""
