// Tensor requests with Triton's client for Python, over the Open Inference Protocol.
import { literal } from "./literals.js";

/** Names of dtypes: of the server -> of the protocol, and of numpy. */
const DATATYPES = {
  bool: ["BOOL", "bool_"],
  int8: ["INT8", "int8"], int16: ["INT16", "int16"], int32: ["INT32", "int32"], int64: ["INT64", "int64"],
  uint8: ["UINT8", "uint8"], uint16: ["UINT16", "uint16"], uint32: ["UINT32", "uint32"], uint64: ["UINT64", "uint64"],
  float16: ["FP16", "float16"], float32: ["FP32", "float32"], float64: ["FP64", "float64"],
  string: ["BYTES", "object_"],
};

/**
 * Return the snippet, or null where the protocol has no such tensors (maps, sequences) or the body is long.
 *
 * `tensors`: `{model, inputs: [{name, dtype, shape, data}], outputs: [{name, dtype}]}`, with flat data.
 */
export function tritonSnippet({ tensors, base, hasKey, isLong }) {
  if (!tensors || isLong || tensors.inputs.length === 0) return null;
  const inputs = tensors.inputs.filter((input) => DATATYPES[input.dtype] !== undefined);
  const outputs = tensors.outputs.filter((output) => DATATYPES[output.dtype] !== undefined).map((output) => output.name);
  if (inputs.length < tensors.inputs.length || outputs.length === 0) return null;
  const isSafe = base.startsWith("https:");
  const lines = [
    ...(hasKey ? ["import os", ""] : []),
    "import numpy as np",
    "import tritonclient.http as triton",
    "",
    `client = triton.InferenceServerClient(${JSON.stringify(base.replace(/^https?:\/\//, ""))}${isSafe ? ", ssl=True" : ""})`,
    "inputs = []",
  ];
  for (const { name, dtype, shape, data } of inputs) {
    const [datatype, numpy] = DATATYPES[dtype];
    const values = data.map((value) => (typeof value === "number" && !Number.isFinite(value) ? null : value));
    lines.push(
      `values = np.array(${literal(values, "python")}, dtype=np.${numpy})`,
      `tensor = triton.InferInput(${literal(name, "python")}, ${literal(shape, "python")}, "${datatype}")`,
      `tensor.set_data_from_numpy(values.reshape(${shape.join(", ")}))`,
      "inputs.append(tensor)",
    );
  }
  const headers = hasKey ? ', headers={"authorization": f"Bearer {os.environ[\'ROUNDHOUSE_KEY\']}"}' : "";
  lines.push(
    `outputs = [triton.InferRequestedOutput(name) for name in ${literal(outputs, "python")}]`,
    `answer = client.infer(${literal(tensors.model, "python")}, inputs, outputs=outputs${headers})`,
    `for name in ${literal(outputs, "python")}:`,
    "    print(name, answer.as_numpy(name))",
  );
  return { id: "triton", label: "Python (tritonclient)", text: lines.join("\n") };
}
