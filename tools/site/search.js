/* Finds sections of all pages, as `serried docs --search`. Everything it needs is in sections.js, so it works from files. */
"use strict";

const MOST = 30, OF_A_PAGE = 3, BEFORE = 60, LENGTH = 240;
const query = new URLSearchParams(location.search).get("q") ?? "";
const words = query.split(/\s+/).filter(Boolean).map((word) => {
  const stem = word.replace(/s+$/i, "") || word;
  return new RegExp(`(?<!\\w)${stem.replace(/[^\w\s]/g, "\\$&")}`, "i");
});
const count = (text) => words.filter((word) => word.test(text)).length;

/** The sections of the pages that have most of the words, the best first; pages for developers come last. */
function find() {
  const found = PAGES.flatMap((page) => {
    const inPage = count(page.sections.map((section) => `${section.title} ${section.text}`).join(" "));
    const ofPage = page.sections.filter((section) => count(`${section.title} ${section.text}`)).map((section) => ({
      page, section, inPage,
      score: 2 * count(section.title) + count(`${page.name} ${page.sections[0].title}`) + 3 * count(section.text),
      often: words.reduce((sum, word) => sum + section.text.split(word).length - 1, 0),
    }));
    return ofPage.sort((one, other) => other.score - one.score || other.often - one.often).slice(0, OF_A_PAGE);
  });
  const most = Math.max(0, ...found.map((one) => one.inPage));
  return found.filter((one) => one.inPage === most)
    .sort((one, other) => one.page.last - other.page.last || other.score - one.score || other.often - one.often);
}

/** Part of a text around the first word that was searched, with all of these words marked. */
function excerpt(text) {
  const at = Math.max(0, Math.min(...words.map((word) => text.search(word)).filter((place) => place >= 0), text.length) - BEFORE);
  const from = at && at < text.length - BEFORE ? text.indexOf(" ", at) + 1 : 0;
  const line = document.createElement("p");
  const parts = text.slice(from, from + LENGTH).split(new RegExp(`(${words.map((word) => word.source).join("|")})`, "i"));
  line.append(from ? "… " : "", ...parts.map((part, index) => {
    if (index % 2 === 0) return part;
    const mark = document.createElement("mark");
    mark.textContent = part;
    return mark;
  }), from + LENGTH < text.length ? " …" : "");
  return line;
}

function show(found) {
  const counted = found.length === 1 ? "1 section" : `${found.length || "No"} sections`;
  document.getElementById("count").textContent = query ? `${counted} for “${query}”` : "Type words in the field beside this page.";
  document.getElementById("results").append(...found.slice(0, MOST).map(({ page, section }) => {
    const link = document.createElement("a"), item = document.createElement("li"), title = page.sections[0].title;
    link.href = section.id ? `${page.name}.html#${section.id}` : `${page.name}.html`;
    link.textContent = section === page.sections[0] ? title : `${title} › ${section.title}`;
    item.append(link, excerpt(section.text));
    return item;
  }));
}

document.querySelector(".sidebar-search").value = query;
show(words.length ? find() : []);
