// The list of rows, a page of it at a time, and how keys and clicks move through it.

const PAGE_ROWS = 50;

class RowList {
  constructor(data) {
    this.data = data;
    this.rows = data.rows.map((row, index) => Object.assign(row, { index }));
    this.haystacks = new Haystacks(data);
    this.form = document.getElementById("filters");
    this.list = document.getElementById("rows");
    this.count = document.getElementById("count");
    this.pager = document.getElementById("pager");
    this.matches = [];
    this.cursor = 0; // the place among the matches of the row that keys act on
    this.open = null; // the opened row
  }

  get page() {
    return Math.floor(this.cursor / PAGE_ROWS);
  }

  start() {
    fillForm(this.form, this.rows);
    this.form.querySelector("details").open = matchMedia("(min-width: 48rem)").matches;
    for (const hidden of [this.form, this.pager, document.querySelector(".listhead")]) hidden.hidden = false;
    let waiting = 0;
    this.form.addEventListener("input", (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.filter(), event.target.type === "search" ? 120 : 0);
    });
    this.form.addEventListener("reset", () => setTimeout(() => this.filter()));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.list.addEventListener("click", (event) => {
      const head = event.target.closest("button.head");
      if (head) this.toggle(Number(head.dataset.place));
    });
    document.addEventListener("keydown", (event) => this.press(event));
    this.filter();
    this.openLinked();
  }

  filter() {
    this.matches = matching(this.form, this.rows, this.haystacks);
    const kept = this.open ? this.matches.indexOf(this.open) : -1;
    if (kept < 0) this.open = null;
    this.cursor = Math.max(kept, 0);
    const num = numChosen(this.form);
    this.form.querySelector("details > summary").textContent = num ? `Filters (${num} set)` : "Filters";
    this.draw();
  }

  draw() {
    const first = this.page * PAGE_ROWS;
    const shown = this.matches.slice(first, first + PAGE_ROWS);
    const hadFocus = this.list.contains(document.activeElement);
    this.list.replaceChildren(...shown.map((row, index) => this.item(row, first + index)));
    this.list.start = first + 1;
    if (!shown.length) this.list.append(make("li", { class: "empty" }, "No summary fits these filters."));
    const [found, all] = [this.matches.length, this.rows.length];
    this.count.textContent = found === all ? `${number(all)} summaries` : `${number(found)} of ${number(all)} summaries`;
    this.drawPager();
    if (hadFocus) this.head(this.cursor)?.focus({ preventScroll: true });
  }

  drawPager() {
    const pages = Math.ceil(this.matches.length / PAGE_ROWS);
    this.pager.hidden = pages <= 1;
    const step = (title, page) => {
      const button = make("button", { type: "button", class: "quiet", disabled: page < 0 || page >= pages }, title);
      button.addEventListener("click", () => this.turn(page));
      return button;
    };
    const where = `Page ${number(this.page + 1)} of ${number(pages)}`;
    this.pager.replaceChildren(
      step("First", this.page > 0 ? 0 : -1),
      step("Previous", this.page - 1),
      make("span", { "aria-current": "page" }, where),
      step("Next", this.page + 1),
      step("Last", this.page < pages - 1 ? pages - 1 : -1),
    );
  }

  item(row, place) {
    const isOpen = row === this.open;
    const state = row.label ?? "unknown";
    const bar = make("span", { class: "bar" });
    bar.style.setProperty("--share", row.score ?? 0);
    const wrong = row.gold && row.label && row.gold !== row.label;
    const about = [row.id, row.summarizer, row.dataset].filter(Boolean).join(" · ");
    const head = make(
      "button",
      {
        type: "button", class: "head", "data-place": place, tabindex: place === this.cursor ? 0 : -1,
        "aria-expanded": String(isOpen), "aria-controls": isOpen ? `detail-${row.row}` : null,
      },
      make("span", { class: `chip ${state}` }, row.label ?? words(row.status)),
      make("span", { class: "score" }, row.score === undefined ? null : bar, score(row.score)),
      row.gold ? make("span", { class: wrong ? "gold wrong" : "gold" }, `gold: ${row.gold}`) : null,
      make("span", { class: "about" }, about || `row ${number(row.row)}`),
      isOpen ? null : make("span", { class: "preview" }, ...markedSummary(row, false)),
    );
    const item = make("li", { class: isOpen ? "row open" : "row" }, head);
    if (isOpen) item.append(detail(row, this.data.places[row.index], this.data.documents));
    return item;
  }

  head(place) {
    return this.list.querySelector(`button.head[data-place="${place}"]`);
  }

  /** Open the row at a place among the matches, or close it where it is open. */
  toggle(place) {
    this.cursor = place;
    const row = this.matches[place];
    this.open = row === this.open ? null : row;
    history.replaceState(null, "", this.open ? `#row-${row.row}` : "#summaries");
    this.show();
  }

  /** Move to another row; where one was open, that one opens in its place. */
  move(step) {
    const isIn = this.list.contains(document.activeElement) || this.open;
    const place = isIn ? this.cursor + step : this.cursor;
    if (place < 0 || place >= this.matches.length) return;
    this.cursor = place;
    if (this.open) {
      this.open = this.matches[place];
      history.replaceState(null, "", `#row-${this.open.row}`);
    }
    this.show();
  }

  turn(page) {
    this.open = null;
    this.cursor = page * PAGE_ROWS;
    this.show();
  }

  show() {
    this.draw();
    const head = this.head(this.cursor);
    head?.focus({ preventScroll: true });
    head?.scrollIntoView({ block: this.open ? "start" : "nearest" });
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    const isTyping = target.matches("input, select, textarea");
    if (event.key === "Escape" && isTyping) this.leaveField(target);
    else if (event.key === "Escape" && this.open) this.toggle(this.matches.indexOf(this.open));
    else if (isTyping) return;
    else if (event.key === "/") this.form.elements.query.focus();
    else if (event.key === "j") this.move(1);
    else if (event.key === "k") this.move(-1);
    else if (event.key === "ArrowDown" && target.matches("button.head")) this.move(1);
    else if (event.key === "ArrowUp" && target.matches("button.head")) this.move(-1);
    else return;
    event.preventDefault();
  }

  /** Out of a field and into the list; what was typed stays. */
  leaveField(field) {
    field.blur();
    this.head(this.cursor)?.focus();
  }

  /** A link that ends in #row-17 opens that row. */
  openLinked() {
    const wanted = /^#row-(\d+)$/.exec(location.hash);
    const place = wanted ? this.matches.findIndex((row) => row.row === Number(wanted[1])) : -1;
    if (place >= 0) this.toggle(place);
  }
}
