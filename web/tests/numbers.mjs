// The page's numbers are the program's: the documents are equal to the byte, for every preset.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { answered, documentOf, fragment, launch, napkin, open, serve } from "./lib/browser.mjs";

let browser;
let server;
before(async () => {
  [browser, server] = await Promise.all([launch(), serve()]);
});
after(async () => {
  await browser.close();
  server.stop();
});

const QUESTIONS = {
  ledger: { tab: "memory", words: ["--hw", "h100-sxm", "-n", "8", "--zero", "3", "--timeline"] },
  flops: { tab: "flop", words: [] },
  params: { tab: "flop", ask: "params", words: [] },
  time: { tab: "time", words: ["--hw", "h100-sxm", "-n", "8", "--tokens", "1T"] },
};

for (const [question, { tab, ask = "", words }] of Object.entries(QUESTIONS)) {
  test(`${question} of every preset`, async () => {
    const fields = { tab, ask, m: "gpt2", hw: "h100-sxm", n: "8", zero: "3", tokens: "1T" };
    const { page } = await open(browser, server.address + fragment(fields));
    const presets = await page.locator("#presets option").evaluateAll((all) => all.map((one) => one.value));
    assert.ok(presets.length > 40);
    for (const preset of presets) {
      const line = [question, preset, ...words];
      await page.locator('#form [name="model"]').fill(preset);
      await answered(page, ["napkin", ...line].join(" "));
      assert.equal(await documentOf(page), napkin(line), preset);
    }
  });
}
