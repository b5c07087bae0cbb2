// Set the formulas of a page, which pymdownx.arithmatex marks as \(...\) or \[...\], with KaTeX.
for (const element of document.querySelectorAll(".arithmatex")) {
  const source = element.textContent.trim();
  katex.render(source.slice(2, -2), element, { displayMode: source.startsWith("\\["), throwOnError: false });
}
