"""What may stop everything else: unknown host keys, package policy, a scope that is not served."""
