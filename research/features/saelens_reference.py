"""Write what SAELens itself encodes and reconstructs, for tests: dictionaries of each architecture, and their outputs.

It runs in an environment of its own, since SAELens needs transformer-lens before version 4:

python -m venv saelens && saelens/bin/pip install sae-lens==6.54.12
saelens/bin/python research/features/saelens_reference.py --out tests/models/saelens

With --shards FOLDER it also reads what `mmprobe activations` wrote with SAELens' own ActivationsStore, and prints the
shape and the sum of its first batch; with --dictionary FOLDER it loads a dictionary, and prints its error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from sae_lens import (  # ty: ignore
    SAE,
    GatedSAE,
    GatedSAEConfig,
    JumpReLUSAE,
    JumpReLUSAEConfig,
    JumpReLUSkipTranscoder,
    JumpReLUSkipTranscoderConfig,
    JumpReLUTranscoder,
    JumpReLUTranscoderConfig,
    SkipTranscoder,
    SkipTranscoderConfig,
    StandardSAE,
    StandardSAEConfig,
    TopKSAE,
    TopKSAEConfig,
    Transcoder,
    TranscoderConfig,
    __version__,
)
from sae_lens.saes.sae import SAEMetadata
from safetensors.torch import load_file, save_file

IN, FEATURES, OUT = 6, 11, 5  # not square, so that a transposed matrix does not pass
_TRANSCODER = {"d_out": OUT, "apply_b_dec_to_input": False}
CASES = {
    "standard": (StandardSAE, StandardSAEConfig, {}),
    "standard_no_bias": (StandardSAE, StandardSAEConfig, {"apply_b_dec_to_input": False}),
    "layer_norm": (StandardSAE, StandardSAEConfig, {"normalize_activations": "layer_norm"}),
    "constant_norm": (JumpReLUSAE, JumpReLUSAEConfig, {"normalize_activations": "constant_norm_rescale"}),
    "jumprelu": (JumpReLUSAE, JumpReLUSAEConfig, {}),
    "topk": (TopKSAE, TopKSAEConfig, {"k": 3}),
    "topk_rescaled": (TopKSAE, TopKSAEConfig, {"k": 3, "rescale_acts_by_decoder_norm": True}),
    "gated": (GatedSAE, GatedSAEConfig, {}),
    "transcoder": (Transcoder, TranscoderConfig, _TRANSCODER),
    "skip_transcoder": (SkipTranscoder, SkipTranscoderConfig, _TRANSCODER),
    "jumprelu_transcoder": (JumpReLUTranscoder, JumpReLUTranscoderConfig, _TRANSCODER),
    "jumprelu_skip_transcoder": (JumpReLUSkipTranscoder, JumpReLUSkipTranscoderConfig, _TRANSCODER),
}


def main() -> None:
    """Write the cases, or check what mmprobe wrote."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shards", type=Path)
    parser.add_argument("--dictionary", type=Path)
    options = parser.parse_args()
    if options.out:
        write_cases(options.out)
    if options.shards:
        read_shards(options.shards)
    if options.dictionary:
        sae = SAE.load_from_disk(options.dictionary)
        print(type(sae).__name__, sae.cfg.metadata.hook_name, tuple(sae.W_enc.shape))


def write_cases(out: Path) -> None:
    """Write a dictionary of each case as SAELens saves it, with inputs and outputs."""
    torch.manual_seed(0)
    for name, (kind, config, options) in CASES.items():
        hooks = {"hook_name": "blocks.1.hook_resid_post"}
        if "d_out" in options:
            hooks = {"hook_name": "blocks.1.mlp.hook_in", "hook_name_out": "blocks.1.hook_mlp_out"}
        metadata = SAEMetadata(model_name="case", **hooks)
        sae = kind(config(d_in=IN, d_sae=FEATURES, metadata=metadata, **options)).eval()
        with torch.no_grad():
            for key, value in sae.named_parameters():
                value.copy_(torch.randn_like(value).abs() if key == "threshold" else torch.randn_like(value))
        sae.save_model(out / name)
        inputs = 2 * torch.randn(2, 7, IN) + 0.3
        with torch.no_grad():
            features, output = sae.encode(inputs), sae(inputs)
        assert (features > 0).any() and (features == 0).any()
        tensors = {"inputs": inputs, "features": features.to_dense(), "output": output}
        save_file(tensors, out / name / "outputs.safetensors", {"sae_lens": __version__})
        assert load_file(out / name / "sae_weights.safetensors")
    print(f"{len(CASES)} cases by SAELens {__version__}")


def read_shards(folder: Path) -> None:
    """Read shards as SAELens' trainer does."""
    import datasets
    from sae_lens.training.activations_store import ActivationsStore

    features = datasets.load_from_disk(str(folder)).features
    for hook in sorted(set(features) - {"token_ids"}):
        context, d_in = features[hook].shape
        store = ActivationsStore(
            model=None, dataset=None, streaming=False, hook_name=hook, hook_head_index=None, context_size=context,
            d_in=d_in, n_batches_in_buffer=2, total_training_tokens=10**6, store_batch_size_prompts=1,
            train_batch_size_tokens=8, prepend_bos=False, normalize_activations="none",
            device=torch.device("cpu"), dtype="float32", cached_activations_path=str(folder),
        )  # fmt: skip
        values, ids = store.get_raw_llm_batch()
        shown = {"hook": hook, "shape": list(values.shape), "sum": float(values.sum()), "ids": int(ids.sum())}
        print(json.dumps(shown))


if __name__ == "__main__":
    main()
