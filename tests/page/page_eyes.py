"""What tests of the page look at with the browser's eyes, as functions that run in the page."""

from __future__ import annotations

SPOKEN = "return [...document.querySelectorAll('#announcements p')].map(one => one.textContent)"
"""What was read out since the page was opened."""

NAMELESS = {
    "link",
    "button",
    "DisclosureTriangle",
    "table",
    "region",
    "navigation",
    "heading",
    "columnheader",
}
"""Roles that mean nothing without a name."""

ACCESSIBLE = """
const wrong = [];
for (const table of document.querySelectorAll('table')) {
  if (!table.caption?.textContent) wrong.push('a table without a caption');
  for (const header of table.querySelectorAll('th'))
    if (!['row', 'col'].includes(header.scope)) wrong.push(`th without scope: ${header.textContent}`);
}
let level = 0;
for (const heading of document.querySelectorAll('h1, h2, h3, h4, h5, h6')) {
  const next = Number(heading.tagName[1]);
  if (next > level + 1) wrong.push(`h${next} after h${level}: ${heading.textContent}`);
  level = next;
}
if (document.documentElement.lang !== 'en') wrong.push('no language');
if (document.querySelector('[aria-live=polite]') === null) wrong.push('nothing is read out');
return wrong;
"""
"""What is wrong with the structure of the page."""

BROKEN = r"""
const wrong = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  if (node.parentElement.closest('script, style, noscript, .unseen, [hidden]')) continue;
  for (const word of node.data.matchAll(/[\p{L}\p{N}]+/gu)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const tops = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
    if (tops.size > 1) wrong.push(word[0]);
  }
}
return wrong;
"""
"""Words that are on more than one line."""

OVERLAP = r"""
const wrong = [];
for (const row of document.querySelectorAll('tr')) {
  const boxes = [...row.children].map((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return [cell.textContent, range.getBoundingClientRect()];
  });
  for (const [text, a] of boxes)
    for (const [other, b] of boxes)
      if (a !== b && a.width && b.width && a.left < b.right - 1 && b.left < a.right - 1
          && a.top < b.bottom - 4 && b.top < a.bottom - 4) wrong.push(`${text} | ${other}`);
}
return wrong;
"""
"""Cells whose texts overlap."""

CONTRAST = """
const wrong = [];
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = (colour) => {
  const [r, g, b] = parts(colour).map((one) => {
    one /= 255;
    return one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    const alpha = parts(colour)[3] ?? 1;
    if (alpha === 1) return colour;
    if (alpha !== 0) wrong.push(`a ground that shines through: ${colour}`);
  }
  return 'rgb(255, 255, 255)';
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim()) continue;
  if (element.closest('script, style, noscript, .unseen, [hidden]')) continue;
  seen += 1;
  const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) wrong.push(`${ratio.toFixed(2)}: ${walker.currentNode.data}`);
}
if (seen < 100) wrong.push(`only ${seen} texts were looked at`);
return wrong;
"""
"""Texts whose contrast with their ground is below 4.5 : 1 (WCAG 2.2, 1.4.3)."""
