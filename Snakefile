# The graph of attnprior. Rules: workflow/rules. Settings: params.yaml. Names and files: src/attnprior/workflow/graph.py.
#
#   fetch_dataset ──┬─► pretrain_teacher ─┐
#                   └─────────────────────┼─► train_student ─┬─► evaluate ─► compare ─┬─► draw ─► report
#   fit_impulse ──────────────────────────┘                  └─► extract_maps ────────┘
from snakemake.utils import min_version

min_version("9.27")


configfile: "params.yaml"


report: "workflow/report/workflow.rst"


# With `--sdm apptainer`: an image of Containerfile, such as docker-archive://attnprior.tar or attnprior.sif.
container: os.environ.get("ATTNPRIOR_IMAGE")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/teachers.smk"
include: "workflow/rules/students.smk"
include: "workflow/rules/results.smk"
include: "workflow/rules/start.smk"


rule all:
    default_target: True
    # Every artifact, not only the last: a missing intermediate of an existing target is not remade.
    input:
        graph.targets(config),
    localrule: True
    message:
        "All artifacts of {config[active]} are there."
