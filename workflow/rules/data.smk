# Data sets: one file each, made once.


rule fetch_dataset:
    input:
        code=code_files("fetch_dataset"),
    output:
        data="data/{dataset}.safetensors",
        run="data/{dataset}.run.json",
    log:
        text="logs/fetch_dataset/{dataset}.log",
        events="logs/fetch_dataset/{dataset}.events.jsonl",
    benchmark:
        "logs/fetch_dataset/{dataset}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=30,
        gpu=0,
    params:
        json=lambda wildcards: settings.settings(
            config, f"datasets.{wildcards.dataset}"
        ),
    message:
        "Fetching data set {wildcards.dataset}"
    shell:
        "python -m attnprior.stages.fetch_dataset --dataset {wildcards.dataset} --output {output.data}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"
