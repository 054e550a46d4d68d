"""The cluster examples, checked as far as possible without a cluster.

The jobs of Kubernetes: by the models of kubeflow-trainer-api and kubeflow-training, by the schemas
of kubernetes-validate (versions: .ci/requirements-dev.txt), and by the rules that Kubeflow Trainer
2.3.0 and the Training Operator 1.9 apply in admission webhooks, stated here. The commands of the
jobs, and the Slurm script, run here, with a torchrun for each of two "nodes" of this host and
stand-ins for Slurm. The Ray program runs with Ray itself.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow.training import ApiClient
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

from harness import dlslime_only
from nodes import free_port
from paths import EXAMPLES, ROOT
from wheels import made, pip

CLUSTER = EXAMPLES / "cluster"
KUBERNETES = "1.37"
IN_IMAGE = "/opt/dlslime"  # the repository, in the image of the jobs
# What ray[train] needs beyond the packages of the tests. 150 MB to download, 500 MB on disk.
RAY = [
    "ray==2.60.0",
    "msgpack==1.2.4",
    "pandas==3.1.1",
    "protobuf==7.36.2",
    "pyarrow==26.0.1",
    "tensorboardX==2.6.5",
]
DEADLINE = 300  # seconds
# Mappings with names of the user's or of other programs, which no model lists.
FREE = {"annotations", "limits", "pytorchReplicaSpecs"}
jobs = pytest.mark.parametrize("name", ["trainjob.yaml", "pytorchjob.yaml"])


def loaded(name: str) -> Any:
    """Return a YAML file's content, as JSON has it: aliases are copies."""
    return json.loads(json.dumps(yaml.safe_load((CLUSTER / name).read_text())))


def by_model(name: str, job: Any) -> Any:
    """Return what the job is after a passage through its model, which drops unknown fields."""
    if name == "trainjob.yaml":
        model = TrainerV1alpha1TrainJob.from_dict(job)
        assert model is not None
        return model.to_dict()
    client = ApiClient()
    answer = SimpleNamespace(data=json.dumps(job))  # as if from a server
    return client.sanitize_for_serialization(client.deserialize(answer, "KubeflowOrgV1PyTorchJob"))


def node_patch(job: Any) -> Any:
    """Return the TrainJob's patch for the template of its pods."""
    (patch,) = job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    return replicated["template"]["spec"]["template"]


def pods_of(name: str) -> list[Any]:
    """Return the pods of a job; a TrainJob's as Kubeflow Trainer merges trainer and patch."""
    job = loaded(name)
    if name == "pytorchjob.yaml":
        templates = [spec["template"] for spec in job["spec"]["pytorchReplicaSpecs"].values()]
    else:
        trainer, template = job["spec"]["trainer"], node_patch(job)
        (container,) = template["spec"]["containers"]
        container.update({key: trainer[key] for key in ("image", "command", "env")})
        container["resources"] = trainer["resourcesPerNode"]
        templates = [template]
    return [{"apiVersion": "v1", "kind": "Pod", **template} for template in templates]


def validate(what: Any) -> None:
    """Check by Kubernetes' schema; raises for a kind without a schema, too."""
    assert kubernetes_validate.validate(what, KUBERNETES, strict=True) == KUBERNETES


def misspelt(tree: Any) -> Iterator[tuple[list[str | int], Any]]:
    """Yield a copy of the tree for each mapping in it, with an unknown field there; and where."""

    def places(node: Any, path: list[str | int]) -> Iterator[list[str | int]]:
        if isinstance(node, dict) and (not path or path[-1] not in FREE):
            yield path
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            if isinstance(value, dict | list):
                yield from places(value, [*path, key])

    for path in places(tree, []):
        changed = place = copy.deepcopy(tree)
        for key in path:
            place = place[key]
        place["resourcs"] = "x"
        yield path, changed


@jobs
def test_job_has_fields_of_its_kind_only(name: str) -> None:
    job = loaded(name)
    assert by_model(name, job) == job


@jobs
def test_unknown_field_of_a_job_is_noticed(name: str) -> None:
    changes = list(misspelt(loaded(name)))
    assert len(changes) > 15
    for path, job in changes:
        assert by_model(name, job) != job, path


@jobs
def test_pods_are_valid(name: str) -> None:
    for pod in pods_of(name):
        validate(pod)
        (container,) = pod["spec"]["containers"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"]: "/dev/shm" for volume in pod["spec"]["volumes"]}
        assert any(name.startswith("rdma/") for name in container["resources"]["limits"])


@jobs
def test_unknown_field_of_a_pod_is_refused(name: str) -> None:
    changes = list(misspelt(pods_of(name)[0]))
    assert len(changes) > 10
    for path, pod in changes:
        print(f"unknown field below {path}")  # shown if the test fails
        with pytest.raises(kubernetes_validate.ValidationError, match="resourcs"):
            validate(pod)


@jobs
def test_jobs_themselves_have_no_schema(name: str) -> None:
    """So that the pods have to be validated apart: the command line only warns."""
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        validate(loaded(name))


def test_trainjob_keeps_the_rules_of_kubeflow_trainer() -> None:
    job = loaded("trainjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    (patch,) = job["spec"]["runtimePatches"]
    assert re.fullmatch(r"[a-z0-9.-]+/[A-Za-z0-9/._-]+", patch["manager"])
    (container,) = node_patch(job)["spec"]["containers"]
    assert container["name"] == "node"
    assert "env" not in container  # may be set for the trainer only
    assert not [env for env in job["spec"]["trainer"]["env"] if env["name"].startswith("PET_")]


def test_pytorchjob_keeps_the_rules_of_the_training_operator() -> None:
    job = loaded("pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert list(replicas) == ["Master", "Worker"]
    assert replicas["Master"]["replicas"] == 1
    assert replicas["Worker"]["replicas"] >= 1
    for replica in replicas.values():
        assert [c["name"] for c in replica["template"]["spec"]["containers"]] == ["pytorch"]


def path_with(folder: Path, **scripts: str) -> str:
    """Return a PATH that begins with a folder of Bash scripts, and of torchrun for this Python."""
    torchrun = f'exec "{sys.executable}" -m torch.distributed.run "$@"'
    for name, text in {"torchrun": torchrun, **scripts}.items():
        script = folder / name
        script.write_text(f"#!/usr/bin/env bash\n{text}")
        script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def start(command: Sequence[str], more: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in the root of the repository, which is asked to end at the deadline."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    limited = ["timeout", "--kill-after=20", str(DEADLINE), *command]
    with log.open("w") as output:
        return subprocess.Popen(limited, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)


def run(command: Sequence[str], scratch: Path, more: Mapping[str, str]) -> tuple[int, str]:
    """Run a command to the end; return the status and the output."""
    log = scratch / "output.txt"
    status = start(command, more, log).wait()
    return status, log.read_text()


def expect_group(
    commands: Sequence[Sequence[str]], variables: Sequence[Mapping[str, str]], scratch: Path
) -> None:
    """Run two launches at once, and check that two ranks of each make one group."""
    logs = [scratch / f"{index}.txt" for index in range(2)]
    launches = [start(*launch) for launch in zip(commands, variables, logs, strict=True)]
    statuses = [launch.wait() for launch in launches]
    output = "".join(log.read_text() for log in logs)
    assert statuses == [0, 0], output
    assert "dlslime, 4 ranks" in output
    assert output.count("ok: ") == 2
    assert "Peers: 3 over shm" in output


def nodes_of(name: str) -> tuple[int, str]:
    """Return the numbers of nodes and of ranks per node of a job."""
    spec = loaded(name)["spec"]
    if name == "trainjob.yaml":
        return spec["trainer"]["numNodes"], str(spec["trainer"]["numProcPerNode"])
    return sum(r["replicas"] for r in spec["pytorchReplicaSpecs"].values()), spec["nprocPerNode"]


def pod_variables(name: str) -> list[dict[str, str]]:
    """Return the variables of each node's container, with those that the controllers set."""
    count, ranks = nodes_of(name)
    address, port = "localhost", str(free_port())
    pod = {"PET_NNODES": str(count), "PET_NPROC_PER_NODE": ranks}
    pod |= {"PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}
    if name == "pytorchjob.yaml":  # the Training Operator addresses programs without torchrun, too
        pod |= {"MASTER_ADDR": address, "MASTER_PORT": port, "WORLD_SIZE": str(count * int(ranks))}
    (container,) = pods_of(name)[0]["spec"]["containers"]
    pod |= {env["name"]: env["value"] for env in container["env"]}
    ranked = ["PET_NODE_RANK", "RANK"] if name == "pytorchjob.yaml" else ["PET_NODE_RANK"]
    return [{**pod, **dict.fromkeys(ranked, str(index))} for index in range(count)]


@dlslime_only
@jobs
def test_commands_of_two_pods_make_one_group(name: str, tmp_path: Path) -> None:
    variables, path = pod_variables(name), path_with(tmp_path)
    assert len(variables) == 2
    (container,) = pods_of(name)[-1]["spec"]["containers"]
    command = [word.replace(IN_IMAGE, str(ROOT)) for word in container["command"]]
    expect_group([command] * 2, [{"PATH": path, **more} for more in variables], tmp_path)


@dlslime_only
def test_line_of_the_page_makes_one_group(tmp_path: Path) -> None:
    found = re.search(r"^torchrun (?:.*\\\n)*.*", (CLUSTER / "README.md").read_text(), re.MULTILINE)
    assert found
    line = found[0].replace("host1:29500", f"localhost:{free_port()}")
    expect_group([["bash", "-c", line]] * 2, [{"PATH": path_with(tmp_path)}] * 2, tmp_path)


SCONTROL = """
[ "$*" = "show hostnames $SLURM_JOB_NODELIST" ] || exit 1
printf 'localhost\\nnode-without-launches\\n'
"""
# Runs the task of each node. The nodes are different hosts for dlslime.
SRUN = """
while [[ $1 == --* ]]; do echo "srun got $1"; shift; done
for ((i = 0; i < SLURM_JOB_NUM_NODES; i++)); do
  SLURM_NODEID=$i SLURM_PROCID=$i SLURM_LOCALID=0 DLSLIME_HOSTID="node $i" "$@" &
  tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit "${status:-0}"
"""
SBATCH = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time"}
NO_NIC = {"DLSLIME_RDMA": "off", "DLSLIME_SOCKET_IFNAME": "=lo"}


def sbatch_options() -> dict[str, str]:
    """Return the options in the Slurm script's first lines."""
    text = (CLUSTER / "slurm.sbatch").read_text()
    head = text[: text.index("\nset -euo pipefail\n")]
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", head, re.MULTILINE))


def run_slurm(scratch: Path, path: str, **more: str) -> tuple[int, str]:
    """Run the Slurm script as Slurm does on the first node of a job."""
    options = sbatch_options()
    slurm = {
        "SLURM_JOB_ID": str(free_port()),  # the script makes a port of the number
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_JOB_NUM_NODES": options["nodes"],
        "SLURM_NTASKS_PER_NODE": options["ntasks-per-node"],
        "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
    }
    copy_of_script = scratch / "slurm_script"  # as in Slurm's spool
    copy_of_script.write_bytes((CLUSTER / "slurm.sbatch").read_bytes())
    return run(["bash", str(copy_of_script)], scratch, {**slurm, "PATH": path, **more})


def test_slurm_script_is_sound() -> None:
    script = str(CLUSTER / "slurm.sbatch")
    for command in (["bash", "-n", script], ["shellcheck", script]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    options = sbatch_options()
    assert set(options) == SBATCH
    assert (options["nodes"], options["ntasks-per-node"]) == ("2", "1")


@dlslime_only
def test_slurm_script_makes_one_group_of_two_nodes(tmp_path: Path) -> None:
    path = path_with(tmp_path, scontrol=SCONTROL, srun=SRUN)
    status, output = run_slurm(tmp_path, path, **NO_NIC)
    assert status == 0, output
    for option in (f"--cpus-per-task={sbatch_options()['cpus-per-task']}", "--kill-on-bad-exit=1"):
        assert f"srun got {option}\n" in output
    assert "dlslime, 4 ranks" in output
    assert output.count("ok: ") == 2
    assert "Peers: 1 over shm, 2 over tcp" in output


@pytest.mark.parametrize(("limit", "warnings"), [("unlimited", 0), ("8192", 2)])
def test_slurm_script_warns_of_little_locked_memory(
    limit: str, warnings: int, tmp_path: Path
) -> None:
    torchrun = 'echo "torchrun got $*"'
    path = path_with(tmp_path, scontrol=SCONTROL, srun=SRUN, torchrun=torchrun)
    said = {"BASH_FUNC_ulimit%%": f"() {{ [ $1 = -l ] && echo {limit}; }}"}
    status, output = run_slurm(tmp_path, path, RANKS_PER_NODE="3", **said)
    assert status == 0, output
    assert output.count("RDMA may lock 8192 KiB only") == warnings, output
    words = r"--nnodes=2 --nproc-per-node=3 .* examples/cluster/two_nodes\.py"
    assert len(re.findall(f"^torchrun got {words}$", output, re.MULTILINE)) == 2, output


@pytest.mark.parametrize(
    "broken",
    [{"torchrun": '[ "$SLURM_NODEID" = 0 ]'}, {"scontrol": "exit 1"}],
    ids=["node", "scontrol"],
)
def test_slurm_script_fails_if_a_part_fails(broken: dict[str, str], tmp_path: Path) -> None:
    scripts = {"scontrol": SCONTROL, "srun": SRUN, "torchrun": "true", **broken}
    status, output = run_slurm(tmp_path, path_with(tmp_path, **scripts))
    assert status == 1, output


@pytest.fixture
def ray_variables() -> Iterator[dict[str, str]]:
    """Variables with which Python finds Ray, and Ray writes into a folder of the test only."""
    packages = made(
        RAY[0].replace("==", "-"), lambda fresh: pip("install", ["--target", str(fresh)], RAY)
    )
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # short: for paths of sockets
        yield {
            "PYTHONPATH": str(packages),
            "HOME": folder,
            "RAY_TMPDIR": folder,
            "RAY_ADDRESS": "local",  # no cluster of this machine
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # Ray's 15 starves the workers on busy processors
            "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.02",
        }


@dlslime_only
def test_ray_program_checks_two_workers(ray_variables: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(CLUSTER / "ray_program.py"), "--workers", "2"]
    status, output = run(command, tmp_path, ray_variables)
    assert status == 0, output
    assert "dlslime, 2 ranks" in output
    assert output.count("ok: ") == 2
    assert "Peers: 1 over shm" in output
