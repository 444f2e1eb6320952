"""A static web farm: one balancer, which leads, and web members behind it. docs/onboarding.md walks through it."""
