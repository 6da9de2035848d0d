"""Prints the PTX of the codec's kernels, compiled for a GPU that need not be here.  Run by test_codec_triton."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import codec_triton

POINTERS = {
    "base_ptr": "*fp32",
    "values_ptr": "*fp32",
    "shares_ptr": "*fp32",
    "scales_ptr": "*fp32",
    "codes_ptr": "*i8",
    "squares_ptr": "*fp64",
    "addresses_ptr": "*i64",
    "count": "i32",
    "count_rows": "i32",
}


def ptx(kernel: triton.JITFunction, constants: dict[str, int]) -> str:
    signature = {name: POINTERS.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    return str(compiled.asm["ptx"])


if __name__ == "__main__":
    print(ptx(codec_triton._encode_kernel, {"ROWS": codec_triton.ROWS}))
    print(ptx(codec_triton._mean_kernel, {"ROWS": codec_triton.ROWS, "MEMBERS": 3}))
