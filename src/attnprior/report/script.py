"""What the page can do with JavaScript: filter and sort the runs. Without it the list is simply there."""

import base64
import hashlib

SCRIPT = """
(function () {
  var list = document.querySelector('.cards'), tools = document.querySelector('.tools');
  if (!list || !tools) return;
  var cards = Array.prototype.slice.call(list.children), words = [], texts = null;
  var filter = tools.elements.filter, sort = tools.elements.sort, down = tools.elements.down;
  var count = tools.querySelector('output');
  cards.forEach(function (card, i) { card.dataset.place = i; });
  function show() {
    if (words.length && !texts) texts = cards.map(function (c) { return c.textContent.toLowerCase(); });
    var shown = 0;
    cards.forEach(function (card, i) {
      var fits = words.every(function (w) { return texts[i].indexOf(w) >= 0; });
      card.hidden = !fits;
      shown += fits;
    });
    count.textContent = shown + ' of ' + cards.length + ' runs';
  }
  function order() {
    var key = sort.value, sign = down.checked ? -1 : 1;
    var value = function (card) {
      var v = card.dataset[key];
      return key === 'started' ? v : v === '' ? -Infinity : Number(v);
    };
    // All at once: moving cards one by one takes seconds with a thousand of them.
    list.replaceChildren.apply(list, cards.map(function (card, i) {
      return [value(card), i, card];
    }).sort(function (a, b) {
      return (a[0] < b[0] ? -sign : a[0] > b[0] ? sign : 0) || a[1] - b[1];
    }).map(function (entry) { return entry[2]; }));
  }
  var waiting;
  filter.addEventListener('input', function () {
    clearTimeout(waiting);
    waiting = setTimeout(function () {
      words = filter.value.toLowerCase().split(/\\s+/).filter(Boolean);
      show();
    }, 100);
  });
  sort.addEventListener('change', order);
  down.addEventListener('change', order);
  tools.addEventListener('submit', function (event) { event.preventDefault(); });
  tools.hidden = false;
  show();
})();
"""


def script_hash() -> str:
    """Return the hash by which the page's content security policy allows this script and no other."""
    return base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
