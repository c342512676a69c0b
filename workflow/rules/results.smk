# Results of a study: tables, then the page that explains them.


rule compare:
    input:
        metrics=lambda wildcards: graph.study_runs(
            config, wildcards.study, "metrics.json"
        ),
        predictions=lambda wildcards: graph.study_runs(
            config, wildcards.study, "predictions.safetensors"
        ),
        code=code_files("compare"),
    output:
        results="results/{study}/results.csv",
        comparisons="results/{study}/comparisons.csv",
        csv="results/{study}/table.csv",
        markdown="results/{study}/table.md",
        latex="results/{study}/table.tex",
        metrics="results/{study}/metrics.json",
        run="results/{study}/run.json",
    log:
        text="logs/compare/{study}.log",
        events="logs/compare/{study}.events.jsonl",
    benchmark:
        "logs/compare/{study}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=30,
        gpu=0,
    params:
        json=lambda wildcards: settings.settings(config, f"studies.{wildcards.study}"),
    message:
        "Comparing the arms of study {wildcards.study}"
    shell:
        "python -m attnprior.stages.compare --study {wildcards.study} --out-dir results/{wildcards.study}"
        " --metrics {input.metrics} --predictions {input.predictions}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"


rule report:
    input:
        tables=[
            f"results/{{study}}/{name}"
            for name in ("results.csv", "comparisons.csv", "table.csv", "metrics.json")
        ],
        runs=lambda wildcards: graph.study_runs(config, wildcards.study, "run.json"),
        code=code_files("report"),
    output:
        page="results/{study}/report.html",
        run="results/{study}/report.run.json",
    log:
        text="logs/report/{study}.log",
        events="logs/report/{study}.events.jsonl",
    benchmark:
        "logs/report/{study}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=30,
        gpu=0,
    params:
        json=lambda wildcards: settings.settings(config, f"studies.{wildcards.study}"),
    message:
        "Writing the report of study {wildcards.study}"
    shell:
        "python -m attnprior.stages.report --study {wildcards.study} --tables-dir results/{wildcards.study}"
        " --output {output.page} --runs {input.runs}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"
