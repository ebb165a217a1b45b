"""Read a long array of numbers by compiled code, from digits to the dtype of a tensor, in one pass.

Begin with `reader`. `kernel` is the compiled function, `rounding` its conversion, `llvm` its instructions, `tables` its
powers of five and ten.
Source: Lemire, Number Parsing at a Gigabyte per Second (2021).
"""
