// The core in a thread of its own: one call at a time, in the order they come. A call that traps is an error like any other.

import { answer, catalogue, document, flipped, initSync, moment, preset, redraw } from "../core/napkin.js";
import type { Call, Reply } from "./engine.ts";

const calls = { answer, catalogue, document, flipped, moment, preset, redraw } as unknown as Record<
  Call["name"],
  (...given: unknown[]) => string
>;

const scope = self as unknown as {
  onmessage: (event: MessageEvent<WebAssembly.Module | Call>) => void;
  postMessage(reply: Reply): void;
};

scope.onmessage = ({ data }) => {
  if (data instanceof WebAssembly.Module) {
    initSync({ module: data });
    return;
  }
  try {
    scope.postMessage({ id: data.id, text: calls[data.name](...data.given) });
  } catch (error) {
    scope.postMessage({ id: data.id, error: error instanceof Error ? error.message : String(error) });
  }
};
