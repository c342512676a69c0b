"""Loads a model that `attnprior track --models` logged, with nothing else at hand, and predicts."""

import sys

import numpy as np
from mlflow import pyfunc
from safetensors.numpy import load_file

uri, data, out = sys.argv[1:]
model = pyfunc.load_model(uri)
tensors = load_file(data)
# As the stage does: the images of one split after the other.
logits = [model.predict(tensors["images"][tensors["split"] == split]) for split in (1, 2)]
np.save(out, np.concatenate(logits))
print(sys.modules["attnprior"].__file__)
