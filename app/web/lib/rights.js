// What the key of this page may do, as the server says in its first event.
import { useObservable } from "./observable.js";
import { hello } from "./server.js";

/** Whether the key has the scope `manage`. False until the server has said so. */
export function useCanManage() {
  return useObservable(hello)?.caller.scopes.includes("manage") ?? false;
}
