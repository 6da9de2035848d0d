"""Prints the PTX of the GPU's kernels, compiled for a GPU that need not be here.  Run by test_codec_triton."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import codec_triton, quantizer_triton
from kernels.codecs.ladder import BF16, INT2, INT4, INT8

TYPES = {
    "base_ptr": "*fp32",
    "values_ptr": "*fp32",
    "residual_ptr": "*fp32",
    "shares_ptr": "*fp32",
    "out_ptr": "*u8",
    "squares_ptr": "*fp64",
    "addresses_ptr": "*i64",
    "places_ptr": "*i32",
    "fields_ptr": "*i32",
    "count": "i32",
    "count_rows": "i32",
    "sent_bytes": "i32",
    "packed_bytes": "i32",
    "decay": "fp32",
    "scales_ptr": "*i16",
    "limits_ptr": "*fp32",
    "levels_ptr": "*fp32",
    "count_blocks": "i32",
    "blocks_of_row": "i32",
    "inputs": "i32",
    "width": "i32",
}


def ptx(kernel: triton.JITFunction, constants: Mapping[str, int | bool], **types: str) -> str:
    signature = {name: (TYPES | types).get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constants))
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    return str(compiled.asm["ptx"])


if __name__ == "__main__":
    for format in (INT8, INT4, INT2, BF16):
        own = {"FORMAT": format.number, "BLOCK": format.block}
        print(ptx(codec_triton._encode_kernel, {**own, "FEEDBACK": True}))
        print(ptx(codec_triton._mean_kernel, {**own, "SENT": format.number, "MEMBERS": 3}))
    print(ptx(codec_triton._choose_kernel, {"K": 64, "FEEDBACK": True}))
    for bf16, int4 in product((True, False), repeat=2):
        own = {"BF16": bf16, "INT4": int4, "WHOLE": bf16}
        codes, numbers = "*u8" if int4 else "*i8", "*i16" if bf16 else "*fp32"
        print(ptx(quantizer_triton._quantize_kernel, own, codes_ptr=codes, values_ptr=numbers))
        print(ptx(quantizer_triton._dequantize_kernel, own, codes_ptr=codes, out_ptr=numbers))
