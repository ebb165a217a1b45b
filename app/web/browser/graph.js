// onnxruntime-web returns no maps, while a classifier of scikit-learn ends in a ZipMap: the tensor before it is returned.

import { bytesField, concatenate, integerField, integersOf, readFields, textOf } from "./protobuf.js";

// Field numbers of onnx.proto3.
const MODEL_GRAPH = 7;
const GRAPH = { node: 1, output: 12 };
const NODE = { input: 1, output: 2, opType: 4, attribute: 5 };
const ATTRIBUTE = { name: 1, ints: 8, strings: 9 };
const VALUE = { name: 1, type: 2 };
const TENSOR_TYPE = 1;
const ELEMENT_TYPE = 1;
const FLOAT = 1;

/**
 * Remove each ZipMap of an ONNX file and make its input an output of the graph.
 *
 * Returns `{graph, maps}`: the bytes of the file to run, and for each map output of the model `{tensor, labels}`, the
 * output that replaces it, of shape [rows, labels]. A file without a ZipMap is returned as it is.
 */
export function withoutMaps(file) {
  const model = readFields(file);
  const place = model.findIndex((field) => field.number === MODEL_GRAPH);
  if (place < 0) throw new Error("the file is not an ONNX model: it has no graph");
  const fields = readFields(model[place].value);
  const maps = {};
  const kept = fields.filter((field) => {
    if (field.number !== GRAPH.node) return true;
    const map = readZipMap(readFields(field.value));
    if (map === null) return true;
    maps[map.output] = { tensor: map.input, labels: map.labels };
    return false;
  });
  if (Object.keys(maps).length === 0) return { graph: file, maps };
  const graph = kept.map((field) => (field.number === GRAPH.output ? replaceOutput(field, maps) : field.raw));
  const parts = model.map((field) => field.raw);
  parts[place] = bytesField(MODEL_GRAPH, concatenate(graph));
  return { graph: concatenate(parts), maps };
}

function readZipMap(node) {
  const type = node.find((field) => field.number === NODE.opType);
  if (type === undefined || textOf(type) !== "ZipMap") return null;
  const labels = [];
  for (const attribute of node.filter((field) => field.number === NODE.attribute)) {
    for (const field of readFields(attribute.value)) {
      if (field.number === ATTRIBUTE.ints) labels.push(...integersOf(field).map(String));
      if (field.number === ATTRIBUTE.strings) labels.push(textOf(field));
    }
  }
  const [input, output] = [NODE.input, NODE.output].map((number) => textOf(node.find((field) => field.number === number)));
  return { input, output, labels };
}

function replaceOutput(field, maps) {
  const map = maps[textOf(readFields(field.value).find((part) => part.number === VALUE.name))];
  if (map === undefined) return field.raw;
  const type = bytesField(TENSOR_TYPE, integerField(ELEMENT_TYPE, FLOAT));
  return bytesField(GRAPH.output, concatenate([bytesField(VALUE.name, map.tensor), bytesField(VALUE.type, type)]));
}
