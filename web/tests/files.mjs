// Configs that are dropped, chosen or pasted; files that are none; links that carry one.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { answered, documentOf, launch, napkin, open, preset, refused, serve } from "./lib/browser.mjs";

let browser;
let server;
before(async () => {
  [browser, server] = await Promise.all([launch(), serve()]);
});
after(async () => {
  await browser.close();
  server.stop();
});

const FIRST = "napkin ledger llama-3.1-8b --hw h100-sxm -n 8 --zero 3 --timeline";
const DROPPED = FIRST.replace("llama-3.1-8b", "config.json");

async function ready(options) {
  const { page } = await open(browser, server.address, options);
  await answered(page, FIRST);
  return page;
}

/** Drops a file onto the page; of `size` bytes where it is larger than its content. */
async function drop(page, name, content, size = 0) {
  await page.evaluate(
    ({ name, bytes, size }) => {
      const parts = [new Uint8Array(bytes), new Uint8Array(Math.max(0, size - bytes.length))];
      const transfer = new DataTransfer();
      transfer.items.add(new File(parts, name));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
    },
    { name, bytes: [...Buffer.from(content)], size },
  );
}

test("a dropped config is answered as the preset it is, key by key", async () => {
  const page = await ready();
  await drop(page, "config.json", preset("qwen3-0.6b"));
  await answered(page, DROPPED);
  const result = (text) => JSON.stringify(JSON.parse(text).result);
  const program = napkin(["ledger", "qwen3-0.6b", "--hw", "h100-sxm", "-n", "8", "--zero", "3"]);
  assert.equal(result(await documentOf(page)), result(program));
  const keys = Object.keys(JSON.parse(preset("qwen3-0.6b")));
  const shown = await page.locator("#config th").allTextContents();
  assert.ok(keys.every((key) => shown.some((one) => one === key || one.startsWith(`${key}.`))), `${keys} in ${shown}`);
  await page.locator('#config [data-key="num_hidden_layers"]').fill("2");
  await answered(page, `${DROPPED} --set num_hidden_layers=2`);
});

test("a key that is not understood is listed", async () => {
  const page = await ready();
  const config = { ...JSON.parse(preset("qwen3-0.6b")), num_special_widgets: 4 };
  await drop(page, "config.json", JSON.stringify(config));
  await answered(page, DROPPED);
  assert.match(await page.locator("#config tr.unknown").textContent(), /num_special_widgets/);
  assert.match(await page.locator("#report").textContent(), /num_special_widgets/);
});

test("a config is chosen, and pasted", async () => {
  const page = await ready();
  await page.locator("#file").setInputFiles({ name: "a.json", mimeType: "", buffer: Buffer.from(preset("gpt2")) });
  await answered(page, DROPPED);
  assert.match(await page.locator("#config summary").textContent(), /config.json: \d+ keys/);
  await documentOf(page);
  await page.locator("summary", { hasText: "paste" }).click();
  await page.locator("#paste").fill(preset("pythia-160m"));
  await page.waitForFunction(() => document.getElementById("json").textContent.includes('"model_type": "gpt_neox"'));
});

test("what is no config is a message, and the page lives on", async () => {
  const page = await ready();
  await drop(page, "config.json", preset("gpt2").slice(0, 200));
  assert.match(await refused(page, /error/), /config.json:\d+/);
  await drop(page, "a.png", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
  await refused(page, /error/);
  await drop(page, "empty.json", "");
  await refused(page, /error/);
  await drop(page, "huge.json", "{", 50 << 20);
  assert.match(await refused(page, /50 MiB/), /10 MiB are not read/);
  await drop(page, "deep.json", "[".repeat(100_000));
  await refused(page, /error/);
  await drop(page, "config.json", preset("gpt2"));
  await answered(page, DROPPED);
});

test("flags that make no sense are a message", async () => {
  const page = await ready();
  const field = page.locator('#form [name="seq-len"]');
  for (const value of ["-1", "1e99", "abc", "0", "'; DROP TABLE", "9".repeat(400)]) {
    await field.fill(value);
    await refused(page, /seq-len/);
  }
  await field.fill("");
  await answered(page, FIRST);
});

test("markup in a config stays text", async () => {
  const page = await ready();
  const config = { ...JSON.parse(preset("gpt2")), "<img src=x onerror=alert(1)>": "<script>alert(2)</script>" };
  await drop(page, "config.json", JSON.stringify(config));
  await answered(page, DROPPED);
  assert.equal(await page.locator("main img, main script").count(), 0);
});

test("a link brings the page back, config and all", async () => {
  const page = await ready();
  await drop(page, "config.json", preset("qwen3-0.6b"));
  await answered(page, DROPPED);
  await page.locator('#config [data-key="num_hidden_layers"]').fill("4");
  await page.locator('#form [name="seq-len"]').fill("1024");
  const command = "napkin ledger config.json --hw h100-sxm -n 8 --zero 3 --seq-len 1024 --timeline --set num_hidden_layers=4";
  await answered(page, command);
  await page.waitForURL(/seq-len=1024.*set\.num_hidden_layers=4/);
  const link = page.url();
  assert.ok(link.length < 2048, `${link.length} characters`);
  assert.match(link, /#v=1&tab=memory&m=config.json&hw=h100-sxm&n=8&zero=3&seq-len=1024&/);
  const json = await documentOf(page);
  const other = await open(browser, link);
  await answered(other.page, command);
  assert.equal(await documentOf(other.page), json);
  assert.equal(await other.page.locator('#form [name="seq-len"]').inputValue(), "1024");
});

test("damaged and newer links are a message", async () => {
  for (const [part, pattern] of [
    ["#v=1&m=config.json&cfg=!!!", /damaged/],
    ["#v=1&m=config.json", /does not carry/],
    ["#v=9&m=gpt2", /version 9/],
  ]) {
    const { page } = await open(browser, server.address + part);
    await refused(page, pattern);
  }
});

test("the back button goes back", async () => {
  const page = await ready();
  await page.locator('[data-tab="flop"]').click();
  await answered(page, "napkin flops llama-3.1-8b");
  await page.locator('#form [name="model"]').fill("gpt2");
  await page.locator('#form [name="model"]').blur();
  await answered(page, "napkin flops gpt2");
  await page.waitForURL(/m=gpt2/);
  await page.goBack();
  await answered(page, "napkin flops llama-3.1-8b");
  await page.goBack();
  await answered(page, FIRST);
});
