# Data sets: one file each, made once.


rule fetch_dataset:
    input:
        # Local archives that the entry names; downloaded ones are known by their checksums.
        source=lambda wildcards: present_files(
            config["datasets"][wildcards.dataset], f"datasets.{wildcards.dataset}"
        ),
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
        mem_mb=grown(2000),
        runtime=grown(240),  # downloads, and decoding of 100,000 images
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
