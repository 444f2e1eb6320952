"""The only code that runs Ansible and ssh and asks Vault."""
