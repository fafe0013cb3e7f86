// Sphinx's own weights (searchtools.js), but guides come before the API and evidence last.
var Scorer = {
  score: ([page, , , , score]) =>
    score -
    (/^(results|papers)\//.test(page) ? 200 : /^(results|evidence|performance|CHANGELOG|decisions)$/.test(page) ? 100 : 0) -
    (/^(reference\/|api)/.test(page) ? 50 : 0) +
    (/^(glossary|method-)/.test(page) ? 20 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
