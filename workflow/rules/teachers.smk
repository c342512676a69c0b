# Where attention may come from: teachers (pre-trained, untrained, students, files) and impulse fits.


rule pretrain_teacher:
    input:
        data="data/{dataset}.safetensors",
        source=lambda w: graph.teacher_source(config, w.dataset, w.teacher, int(w.seed)),
        code=code_files("pretrain_teacher"),
    output:
        weights="teachers/{dataset}/{teacher}/seed{seed}/weights.safetensors",
        metrics="teachers/{dataset}/{teacher}/seed{seed}/metrics.json",
        history="teachers/{dataset}/{teacher}/seed{seed}/history.csv",
        run="teachers/{dataset}/{teacher}/seed{seed}/run.json",
    log:
        text="logs/pretrain_teacher/{dataset}/{teacher}/seed{seed}.log",
        events="logs/pretrain_teacher/{dataset}/{teacher}/seed{seed}.events.jsonl",
    benchmark:
        "logs/pretrain_teacher/{dataset}/{teacher}/seed{seed}.benchmark.tsv"
    priority: 10  # students wait for teachers
    conda:
        "../envs/stages.yaml"
    threads: each(config["compute"]["torch_threads"])
    resources:
        mem_mb=grown(each(1000)),
        runtime=grown(60),
        gpu=each(int(config["compute"]["device"] == "cuda")),
    params:
        json=lambda wildcards: settings.settings(
            config, *graph.teacher_keys(config, wildcards.teacher)
        ),
    message:
        "Making teacher {wildcards.teacher} on {wildcards.dataset}, seed {wildcards.seed}"
    shell:
        "python -m attnprior.stages.pretrain_teacher --dataset {wildcards.dataset} --teacher {wildcards.teacher}"
        " --seed {wildcards.seed} --data {input.data} --source {input.source} --weights {output.weights} --metrics {output.metrics}"
        " --history {output.history} --checkpoint checkpoints/pretrain_teacher/{wildcards.dataset}/{wildcards.teacher}/seed{wildcards.seed}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"


rule fit_impulse:
    input:
        code=code_files("fit_impulse"),
    output:
        fit="fits/{fit}/seed{seed}/fit.safetensors",
        metrics="fits/{fit}/seed{seed}/metrics.json",
        history="fits/{fit}/seed{seed}/history.csv",
        run="fits/{fit}/seed{seed}/run.json",
    log:
        text="logs/fit_impulse/{fit}/seed{seed}.log",
        events="logs/fit_impulse/{fit}/seed{seed}.events.jsonl",
    benchmark:
        "logs/fit_impulse/{fit}/seed{seed}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: config["compute"]["torch_threads"]
    resources:
        mem_mb=grown(1000),
        runtime=grown(30),
        gpu=int(config["compute"]["device"] == "cuda"),
    params:
        json=lambda wildcards: settings.settings(
            config, *graph.fit_keys(config, wildcards.fit)
        ),
    message:
        "Fitting impulse queries and keys {wildcards.fit}, seed {wildcards.seed}"
    shell:
        "python -m attnprior.stages.fit_impulse --fit {wildcards.fit} --seed {wildcards.seed}"
        " --output {output.fit} --metrics {output.metrics} --history {output.history}"
        " --checkpoint checkpoints/fit_impulse/{wildcards.fit}/seed{wildcards.seed}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"
