# Students: one rule trains every arm; only what an arm uses is its input.


rule train_student:
    input:
        data="data/{dataset}.safetensors",
        init_teacher=lambda w: graph.teacher_file(
            config, w.dataset, w.student, int(w.seed), "init"
        ),
        teacher=lambda w: graph.teacher_file(
            config, w.dataset, w.student, int(w.seed), "transfer"
        ),
        fit=lambda w: graph.fit_file(config, w.dataset, w.student, int(w.seed)),
        code=code_files("train_student"),
    output:
        weights="runs/{dataset}/{student}/seed{seed}/weights.safetensors",
        history="runs/{dataset}/{student}/seed{seed}/history.csv",
        predictions="runs/{dataset}/{student}/seed{seed}/predictions.safetensors",
        run="runs/{dataset}/{student}/seed{seed}/run.json",
    log:
        text="logs/train_student/{dataset}/{student}/seed{seed}.log",
        events="logs/train_student/{dataset}/{student}/seed{seed}.events.jsonl",
    benchmark:
        "logs/train_student/{dataset}/{student}/seed{seed}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: each(config["compute"]["torch_threads"])
    resources:
        mem_mb=grown(each(1000)),
        runtime=grown(60),
        gpu=each(int(config["compute"]["device"] == "cuda")),
    params:
        json=lambda wildcards: settings.settings(
            config, *graph.student_keys(config, wildcards.student)
        ),
    message:
        "Training student {wildcards.student} on {wildcards.dataset}, seed {wildcards.seed}"
    shell:
        "python -m attnprior.stages.train_student --dataset {wildcards.dataset} --student {wildcards.student}"
        " --seed {wildcards.seed} --data {input.data}"
        " --init-teacher {input.init_teacher} --teacher {input.teacher} --fit {input.fit}"
        " --weights {output.weights} --history {output.history} --predictions {output.predictions}"
        " --checkpoint checkpoints/train_student/{wildcards.dataset}/{wildcards.student}/seed{wildcards.seed}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"


rule evaluate:
    input:
        predictions="runs/{dataset}/{student}/seed{seed}/predictions.safetensors",
        weights="runs/{dataset}/{student}/seed{seed}/weights.safetensors",
        code=code_files("evaluate"),
    output:
        metrics="runs/{dataset}/{student}/seed{seed}/metrics.json",
        run="runs/{dataset}/{student}/seed{seed}/evaluate.run.json",
    log:
        text="logs/evaluate/{dataset}/{student}/seed{seed}.log",
        events="logs/evaluate/{dataset}/{student}/seed{seed}.events.jsonl",
    benchmark:
        "logs/evaluate/{dataset}/{student}/seed{seed}.benchmark.tsv"
    conda:
        "../envs/stages.yaml"
    threads: 1
    resources:
        mem_mb=grown(500),
        runtime=grown(10),
        gpu=0,
    params:
        json=settings.settings(config, "evaluation"),
    message:
        "Evaluating student {wildcards.student} on {wildcards.dataset}, seed {wildcards.seed}"
    shell:
        "python -m attnprior.stages.evaluate --dataset {wildcards.dataset} --student {wildcards.student}"
        " --seed {wildcards.seed} --predictions {input.predictions} --weights {input.weights} --metrics {output.metrics}"
        " --params {params.json:q} --threads {threads} --run-json {output.run} --events {log.events}"
        " > {log.text} 2>&1"
