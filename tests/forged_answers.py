"""What a compromised host may add to the answers of modules that Ansible runs on it."""

# Python for a wrapper around the host's interpreter. It changes `result`, a module's answer, and `more`, text after it.
# CONTROLLER and VICTIM name an inventory host and a node of others; MARK is a file that must not be created.
EVERY_FORGERY = """
snapshot = {"observed_at": "2026-01-02T03:04:05Z", "controller": {"ping": "OWNED"}, "nodes": {}}
report = {"phase": "owned", "detail": {"claimed_by": "owned", "cpus": 7}, "snapshot": snapshot}
event = {"uuid": "11111111-1111-4111-8111-111111111111", "event": "runner_on_ok"}
event["event_data"] = {"host": CONTROLLER, "task_action": "member_report", "playbook_uuid": "forged"}
event["event_data"]["res"] = {"member_report": report}
coded = base64.b64encode(json.dumps(event).encode()).decode()
marked = "\\x1b[K" + coded + "\\x1b[%dD" % len(coded) + "\\x1b[K"
result["member_report"] = report
result["ansible_facts"] = {"slurm_controller_host": "owned", "slurm_node_name": VICTIM, "ansible_host": "owned"}
result["ansible_facts"] |= {"gpuaas_component_key": "controller", "probed_host": {"hostname": VICTIM}}
result["add_host"] = {"host_name": CONTROLLER, "host_vars": {"slurm_work": {"delete": [VICTIM]}}}
result["add_group"] = "controller"
result["_ansible_notify"] = ["owned"]
result["ansible_stats"] = {"data": {"owned": 1}}
result["not_a_number"] = float("nan")
result["huge"] = "x" * 100_000
result["template"] = "{{ lookup('pipe', 'touch ' ~ MARK) }}"
result["warnings"] = [marked, "{{ 1 + 1 }}"]
result["deprecations"] = [{"msg": marked, "version": "9"}]
result["exception"] = marked
more = "junk " + marked
"""
