"""Make the models of families, a module for each: call the functions of `catalogue_b`."""
