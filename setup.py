"""What the package is and what it needs; the tools are configured in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

TEST = ["pytest>=8.3,<10", "pytest-xdist>=3.6,<4", "hypothesis>=6.100,<7", "ruff>=0.12,<0.18"]
NOTEBOOKS = [
    "matplotlib>=3.9,<4", "ipywidgets>=8.1,<9", "jupytext>=1.16,<2", "nbclient>=0.10,<1", "ipykernel>=6.29,<8",
]  # fmt: skip
TORCH = ["torch==2.13.0", "transformers>=5.0,<6"]

setup(
    name="specjax",
    version="0.1.0",
    description="Research framework for speculative decoding in JAX and Flax",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["specjax", "specjax.*"]),
    package_data={"specjax": ["prompts/*.jsonl"]},
    install_requires=[
        "jax>=0.10,<0.13",
        "flax>=0.12,<0.13",
        "optax>=0.2.5,<0.3",
        "orbax-checkpoint>=0.11.30,<0.13",
        "numpy>=2.0,<3",
        "scipy>=1.13,<2",
        "ml-collections>=1.0,<2",
        "absl-py>=2.1,<3",
        "safetensors>=0.5,<0.9",
        "tokenizers>=0.21,<0.24",
        "jinja2>=3.1.6,<4",
        "huggingface_hub>=0.30,<3",
        "gguf>=0.17,<0.20",
        "rich>=13.9,<16",
        "filelock>=3.15,<4",
        "grain>=0.2.13,<0.3",
        "ml-dtypes>=0.5,<0.7",
        "tensorboardX>=2.6.2,<3",
    ],
    extras_require={
        "test": TEST,
        "dev": [*TEST, "build>=1.2,<2"],
        "notebooks": NOTEBOOKS,
        "parity": TORCH,
        "tpu": ["jax[tpu]>=0.10,<0.13"],  # on a TPU; and elsewhere to compile for one (specjax.aot)
        "bench": [*TORCH, "llama-cpp-python>=0.3.16,<0.4"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
