"""For every test: no network, and threads that wait for others sleep, so that small work stays quick on a busy machine."""

import os

# Before any Hugging Face package and any OpenMP is loaded.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"
