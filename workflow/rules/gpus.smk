# GPUs of this machine: each job that computes on one sees it alone. Commands of the rules, and so what is recorded of
# jobs, do not change.
from attnprior.workflow import gpu_slots

if slot := gpu_slots.prefix(workflow, config["compute"]["device"]):
    shell.prefix(slot)
