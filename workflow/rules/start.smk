# How commands of the rules are started. Their text, and so what is recorded of a job, is the same wherever it runs.
from attnprior.workflow import gpu_slots

if slot := gpu_slots.prefix(workflow, config["compute"]["device"]):
    shell.prefix(slot)  # on a GPU of this machine that no other job has
elif not workflow.is_main_process:
    # In a job of a batch system: in place of its shell, which would be the first to die of a signal to the job.
    # Snakemake would end with it, and leave the stage little time to save where it is.
    shell.prefix(f"{gpu_slots.STRICT}exec ")
