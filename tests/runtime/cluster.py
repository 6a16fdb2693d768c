"""Run experiments one after the other on one Ray: ``python cluster.py EXPERIMENTS.json FOLDER``."""

import json
import sys
from pathlib import Path

import ray

import fednlp

if __name__ == "__main__":
    ray.init("local", num_cpus=2, _node_ip_address="127.0.0.1", log_to_driver=False, include_dashboard=False)
    for name, settings in json.loads(Path(sys.argv[1]).read_text()).items():
        fednlp.run(settings, Path(sys.argv[2]) / name)
    ray.shutdown()
