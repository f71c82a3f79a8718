"""Write the bundled model as a GGUF file: `python make_gguf.py OUT.gguf`. Float32, so that engines can be compared."""

import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

from lz_penalty import bundled_model

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def make_gguf(out: Path, vocab_size: int | None = None) -> Path:
    """Convert weights, settings and tokenizer, the vocabulary padded to a size if one is given; returns the path."""
    folder = bundled_model.path()
    config = json.loads((folder / "config.json").read_text())
    padding = (vocab_size or config["vocab_size"]) - config["vocab_size"]
    config["vocab_size"] += padding
    writer = gguf.GGUFWriter(str(out), "llama")
    add_settings(writer, config)
    add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()), config)
    for name, tensor in load_file(folder / "model.safetensors").items():
        array = tensor.float().numpy()
        if name == "model.embed_tokens.weight":
            array = np.pad(array, ((0, padding), (0, 0)))
        if name in WHOLE:
            writer.add_tensor(WHOLE[name], array)
            continue
        _, _, layer, *rest, kind = name.split(".")
        part = ".".join(rest)
        heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(part)
        if heads:
            array = interleaved(array, config[heads])
        writer.add_tensor(f"blk.{layer}.{NAMES[part]}.{kind}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def quantised(source: Path, kind: str) -> Path:
    """The file quantised by llama.cpp itself, beside it; returns the path. Kinds as llama.cpp names them: Q8_0, Q4_K_M."""
    import llama_cpp

    out = source.with_suffix(f".{kind}.gguf")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    if llama_cpp.llama_model_quantize(bytes(source), bytes(out), ctypes.byref(settings)):
        raise RuntimeError(f"llama.cpp could not quantise {source} as {kind}")
    return out


def interleaved(weight, heads):
    """GGUF's Llama rotates neighbours, transformers' the two halves of a head: the rows in GGUF's order."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def add_settings(writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_tokenizer(writer, tokenizer, config):
    """Byte-level BPE, digits apart: what llama.cpp calls smollm."""
    texts = {token: text for text, token in tokenizer["model"]["vocab"].items()}
    kinds = dict.fromkeys(range(config["vocab_size"]), gguf.TokenType.NORMAL)
    for added in tokenizer["added_tokens"]:
        texts[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([texts.get(token, f"[unused{token}]") for token in range(config["vocab_size"])])
    writer.add_token_types([int(kinds[token]) for token in range(config["vocab_size"])])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    print(make_gguf(Path(sys.argv[1])))
