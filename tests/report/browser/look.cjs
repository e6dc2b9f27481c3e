// Opens a page in headless Chromium and prints what a reader would meet, as JSON.
// node look.cjs MODULES CHROMIUM PAGE SCREENSHOTS
const [modules, chromium, page_path, shots] = process.argv.slice(2);
const playwright = require(modules + "/playwright-core");
const fs = require("fs");
const axe = fs.readFileSync(modules + "/axe-core/axe.min.js", "utf8");

(async () => {
  const browser = await playwright.chromium.launch({
    executablePath: chromium, args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ],
  });
  const found = [];
  for (const width of [390, 1280]) {
    for (const scheme of ["light", "dark"]) {
      // The page's own policy forbids scripts; only our looking in passes it by.
      const context = await browser.newContext({
        viewport: { width, height: 900 }, colorScheme: scheme, bypassCSP: true,
      });
      const page = await context.newPage();
      const messages = [], requests = [];
      page.on("console", (m) => messages.push(m.type() + ": " + m.text()));
      page.on("pageerror", (e) => messages.push("error: " + e.message));
      page.on("request", (r) => { if (!/^(file|data):/.test(r.url())) requests.push(r.url()); });
      await page.goto("file://" + page_path);
      const shift = await page.evaluate(() => new Promise((resolve) => {
        let total = 0;
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) total += entry.value;
        }).observe({ type: "layout-shift", buffered: true });
        setTimeout(() => resolve(total), 300);
      }));
      const sizes = await page.evaluate(() => ({
        overflow: document.documentElement.scrollWidth - window.innerWidth,
        verdict: document.querySelector("#verdict-head")?.innerText ?? "",
        cells: document.querySelectorAll("#cells > details").length,
        empty_cells: [...document.querySelectorAll("#grid td, #cells > details")]
          .filter((e) => !(e.offsetWidth && e.offsetHeight)).length,
        images: document.images.length,
        empty_images: [...document.images]
          .filter((i) => !(i.naturalWidth && i.width && i.height && i.alt)).length,
        figures: document.querySelectorAll("figure svg").length,
        empty_figures: [...document.querySelectorAll("figure svg")]
          .filter((s) => !(s.getBoundingClientRect().width > 50 && s.getBoundingClientRect().height > 50)).length,
        ids: [...document.querySelectorAll("[id]")].map((e) => e.id)
          .filter((id, i, all) => all.indexOf(id) !== i).length,
        scripts: document.scripts.length,
      }));
      await page.screenshot({ path: `${shots}/${width}-${scheme}.png`, fullPage: true });
      await page.evaluate(() => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
      const open_overflow = await page.evaluate(
        () => document.documentElement.scrollWidth - window.innerWidth);
      await page.evaluate(axe);
      const checked = await page.evaluate(() => axe.run());
      const violations = checked.violations.map((v) => ({
        id: v.id, impact: v.impact, count: v.nodes.length,
        first: v.nodes[0].html.slice(0, 200), why: v.nodes[0].failureSummary,
      }));
      found.push({ width, scheme, messages, requests, shift, open_overflow, violations, ...sizes });
      await context.close();
    }
  }
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto("file://" + page_path);
  await page.pdf({ path: `${shots}/print.pdf`, format: "A4" });
  await browser.close();
  console.log(JSON.stringify(found));
})().catch((error) => { console.error(error); process.exit(1); });
