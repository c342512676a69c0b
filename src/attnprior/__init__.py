"""attnprior: where should a Vision Transformer's attention come from when data is scarce?"""

__version__ = "0.1.0"
