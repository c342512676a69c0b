# Results of a study: tables, maps of its networks, figures, then the page that explains them.


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
        results=report(
            "results/{study}/results.csv",
            category="{study}",
            subcategory="Tables",
            labels={"what": "Every number"},
            caption="../report/results.rst",
        ),
        comparisons=report(
            "results/{study}/comparisons.csv",
            category="{study}",
            subcategory="Tables",
            labels={"what": "Every pair"},
            caption="../report/comparisons.rst",
        ),
        csv=report(
            "results/{study}/table.csv",
            category="{study}",
            subcategory="Tables",
            labels={"what": "Table by arm"},
            caption="../report/table.rst",
        ),
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
        mem_mb=grown(1000),
        runtime=grown(30),
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


rule against_paper:
    input:
        table="results/{study}/table.csv",
        published=published.files(),
        code=code_files("against_paper"),
    output:
        csv=report(
            "results/{study}/paper.csv",
            category="{study}",
            subcategory="Tables",
            labels={"what": "Paper against ours"},
            caption="../report/paper.rst",
        ),
        markdown="results/{study}/paper.md",
        latex="results/{study}/paper.tex",
        run="results/{study}/paper.run.json",
    log:
        text="logs/against_paper/{study}.log",
        events="logs/against_paper/{study}.events.jsonl",
    benchmark:
        "logs/against_paper/{study}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: 1
    resources:
        mem_mb=grown(1000),
        runtime=grown(30),
        gpu=0,
    params:
        json=lambda wildcards: settings.settings(config, f"studies.{wildcards.study}"),
    message:
        "Setting the published values beside study {wildcards.study}"
    shell:
        "python -m attnprior.stages.against_paper --study {wildcards.study}"
        " --table {input.table} --published {input.published} --out-dir results/{wildcards.study}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"


rule extract_maps:
    input:
        data=lambda wildcards: mapped.map_files(config, wildcards.study)[0],
        weights=lambda wildcards: mapped.map_files(config, wildcards.study)[1],
        code=code_files("extract_maps"),
    output:
        maps="results/{study}/maps.safetensors",
        run="results/{study}/maps.run.json",
    log:
        text="logs/extract_maps/{study}.log",
        events="logs/extract_maps/{study}.events.jsonl",
    benchmark:
        "logs/extract_maps/{study}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: config["compute"]["torch_threads"]
    resources:
        mem_mb=grown(1000),
        runtime=grown(30),
        gpu=int(config["compute"]["device"] == "cuda"),
    params:
        json=lambda wildcards: settings.settings(
            config, *mapped.map_keys(config, wildcards.study)
        ),
    message:
        "Extracting the maps of study {wildcards.study}"
    shell:
        "python -m attnprior.stages.extract_maps --study {wildcards.study}"
        " --data {input.data} --weights {input.weights} --output {output.maps}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"


rule draw:
    input:
        tables=[f"results/{{study}}/{name}" for name in ("results.csv", "table.csv")],
        predictions=lambda wildcards: graph.study_runs(
            config, wildcards.study, "predictions.safetensors"
        ),
        histories=lambda wildcards: graph.study_runs(
            config, wildcards.study, "history.csv"
        ),
        fit=lambda wildcards: graph.impulse_files(config, wildcards.study)[0],
        weights=lambda wildcards: graph.impulse_files(config, wildcards.study)[1],
        maps="results/{study}/maps.safetensors",
        code=code_files("draw"),
    output:
        accuracy=report(
            "results/{study}/figures/accuracy.svg",
            category="{study}",
            subcategory="Figures",
            labels={"what": "Accuracy"},
            caption="../report/accuracy.rst",
        ),
        labels=report(
            "results/{study}/figures/labels.svg",
            category="{study}",
            subcategory="Figures",
            labels={"what": "Label budgets"},
            caption="../report/labels.rst",
        ),
        curves=report(
            "results/{study}/figures/curves.svg",
            category="{study}",
            subcategory="Figures",
            labels={"what": "Learning curves"},
            caption="../report/curves.rst",
        ),
        impulse=report(
            "results/{study}/figures/impulse.svg",
            category="{study}",
            subcategory="Figures",
            labels={"what": "Impulse maps"},
            caption="../report/impulse.rst",
        ),
        attention=report(
            "results/{study}/figures/attention.svg",
            category="{study}",
            subcategory="Figures",
            labels={"what": "Attention maps"},
            caption="../report/attention.rst",
        ),
        reconstruction=report(
            "results/{study}/figures/reconstruction.svg",
            category="{study}",
            subcategory="Figures",
            labels={"what": "Reconstructions"},
            caption="../report/reconstruction.rst",
        ),
        redundancy=report(
            "results/{study}/figures/redundancy.svg",
            category="{study}",
            subcategory="Figures",
            labels={"what": "Ranks of tokens"},
            caption="../report/redundancy.rst",
        ),
        confusion=report(
            "results/{study}/figures/confusion.svg",
            category="{study}",
            subcategory="Figures",
            labels={"what": "Confusion matrices"},
            caption="../report/confusion.rst",
        ),
        png=expand("results/{{study}}/figures/{name}.png", name=graph.FIGURES),
        captions="results/{study}/figures/captions.json",
        plots=expand(
            "results/{{study}}/figures/{name}.csv",
            name=("val_top1", "val_loss", "labels", "confusion", "redundancy"),
        ),
        run="results/{study}/draw.run.json",
    log:
        text="logs/draw/{study}.log",
        events="logs/draw/{study}.events.jsonl",
    benchmark:
        "logs/draw/{study}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: 1
    resources:
        mem_mb=grown(1000),
        runtime=grown(30),
        gpu=0,
    params:
        json=lambda wildcards: settings.settings(
            config, *graph.figure_keys(config, wildcards.study)
        ),
    message:
        "Drawing the figures of study {wildcards.study}"
    shell:
        "python -m attnprior.stages.draw --study {wildcards.study} --tables-dir results/{wildcards.study}"
        " --out-dir results/{wildcards.study}/figures --predictions {input.predictions}"
        " --fit {input.fit} --weights {input.weights} --maps {input.maps}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"


rule report:
    input:
        tables=[
            f"results/{{study}}/{name}"
            for name in ("results.csv", "comparisons.csv", "table.csv", "metrics.json")
        ],
        figures=expand("results/{{study}}/figures/{name}.svg", name=graph.FIGURES),
        captions="results/{study}/figures/captions.json",
        paper=lambda wildcards: graph.paper_table(config, wildcards.study),
        runs=lambda wildcards: graph.study_runs(config, wildcards.study, "run.json"),
        histories=lambda wildcards: graph.study_runs(
            config, wildcards.study, "history.csv"
        ),
        code=code_files("report"),
    output:
        page=report(
            "results/{study}/report.html",
            category="{study}",
            subcategory="Page",
            labels={"what": "Everything on one page"},
            caption="../report/page.rst",
        ),
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
        mem_mb=grown(1000),
        runtime=grown(30),
        gpu=0,
    params:
        json=lambda wildcards: settings.settings(
            config, *graph.study_keys(config, wildcards.study)
        ),
    message:
        "Writing the report of study {wildcards.study}"
    shell:
        "python -m attnprior.stages.report --study {wildcards.study} --tables-dir results/{wildcards.study}"
        " --output {output.page} --runs {input.runs}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"
