// What the key of this page may do, as the server says in its first event.
import { useObservable } from "./observable.js";
import { hello } from "./server.js";

/** Whether the key has a scope: `read`, `infer`, `write` or `manage`. False until the server has said so. */
export function useScope(scope) {
  return useObservable(hello)?.caller.scopes.includes(scope) ?? false;
}

export function useCanManage() {
  return useScope("manage");
}
