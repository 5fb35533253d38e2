"""Sphinx extension: what every finished page needs, whatever cell its parts came from.

- A figure's SVG is in the page itself, with its sentence; its colours follow light and dark.
- Each cell of a table names its column, so that a telephone shows rows as cards; more than
  :data:`ROWS` rows are folded; headers have a scope.
- Numbers and their units, and formulas and the stops behind them, are not separated at the end of a
  line. Names in code are broken between their words.
- How a figure was made is printed in small type below its caption.
- The story that opens a chapter shows one panel of the figure that it names first.
- Below each exercise is a field for the expected answer; where the exercise checks itself the page
  judges it.
- The first time that a chapter uses a word of the glossary, the word shows what it means.
"""

import copy
import functools
import html
import json
import re
from pathlib import Path

import yaml
from bs4 import BeautifulSoup, Comment, NavigableString

GROUND = "#121212"
"""The background of a dark page."""
ROWS = 14
"""The number of visible rows of a table; the rest is folded."""
NEUTRAL = {"#1d2733": "#dfe5ec", "#5b6673": "#aab4c0", "#d9dee4": "#3a434e", "#ffffff": GROUND}
"""Ink, secondary text, grid lines and card of the figures (``theme``; a test compares), and what
each becomes on a dark page. They are copied: pages may be built before the library is installed."""
SENTENCE = 28
"""From this number of characters on, a cell counts as a sentence and is aligned left."""
NUMBER = re.compile(r"[-+−–±×%.,\d\s()/·⁰¹²³⁴-⁹⁻↑↓″]+$|-?inf$|nan$|∞$")
HEX = re.compile(r"#[0-9a-fA-F]{6}\b")
SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
MADE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
"""How a figure was made, which ``theme.render_svg`` notes in the drawing."""
PANEL = re.compile(
    r'(?ms)^  <g (?:transform="[^"]*" )?id="axes_\d+">\n   <g id="patch_\d+">\s*'
    r'<path d="M (?P<left>[\d.]+)'
    r" (?P<bottom>[\d.]+) \nL (?P<right>[\d.]+) [\d.]+ \nL [\d.]+ (?P<top>[\d.]+).*?^  </g>\n"
)
"""A panel of a drawing and its edges, in points from the top left."""
AXIS = re.compile(r'(?ms)^   <g id="matplotlib\.axis_\d+">.*?^   </g>\n')
TICKS = re.compile(r'<path d="M ([\d.]+) ')
WORDS = re.compile(r'(?ms)^    +<g id="text_\d+">.*?</g>\n')
SAID = re.compile(r">([^<]*)</text>")
"""The horizontal axis of a panel, which is its first; where its lines are; its numbers and its
name, each in a group; and the text of one of them."""
DEFINED = re.compile(r"<defs>.*?</defs>", re.DOTALL)
BOX = re.compile(r'viewBox="([^"]*)"')
"""The visible part of a drawing: its left edge, its top, its width and its height."""
STAYS = re.compile(r"<(svg|script|style)\b.*?</\1>", re.DOTALL)
"""What the steps for tables and captions must not touch."""


def relative_luminance(color):
    """WCAG's relative luminance of a colour."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def darken(color):
    """A colour for the dark page: neutral colours change places, others are lightened until they
    can be read as text."""
    if color.lower() in NEUTRAL:
        return NEUTRAL[color.lower()]
    parts, lightened = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)], color
    while (relative_luminance(lightened) + 0.05) / (relative_luminance(GROUND) + 0.05) < 4.5:
        parts = [1 - 0.94 * (1 - c) for c in parts]
        lightened = "#" + "".join(f"{round(255 * c):02x}" for c in parts)
    return lightened


def colour_by_variables(drawing, colors):
    """An SVG whose colours are variables; the variables are added to ``colors``."""

    def variable(match):
        color = match[0].lower()
        colors.add(color)
        return f"var(--fig-{color[1:]}, {color})"

    # Only a style may contain a variable; a colour in an attribute of its own stays as it is.
    return re.sub(r'style="[^"]*"', lambda style: HEX.sub(variable, style[0]), drawing)


def inline_figures(body, images):
    """Put the SVG of each cell's figure into the page, with unique ids and its sentence as alt."""

    def replaced(match):
        name = re.search(r'src="[^"]*?([^/"]+\.svg)"', match[0])
        path = images.get(name[1]) if name else None
        if path is None:
            return match[0]
        drawing = path.read_text("utf-8")
        drawing = drawing[drawing.index("<svg") :]
        if 'role="img"' not in drawing[:4000]:
            return match[0]
        alt = re.search(r'alt="([^"]*)"', match[0])
        if 'aria-label=""' in drawing and alt:
            drawing = drawing.replace('aria-label=""', f'aria-label="{alt[1]}"', 1)
        drawing = MADE.sub("", drawing, count=1)  # it is printed below the caption
        if "data-hero" in match[0]:
            drawing = cut_to_one_panel(drawing)
        key = f"{path.stem[:8]}-{match.start()}"  # a figure may occur twice on its page
        drawing = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>f{key}-", drawing)
        return re.sub(r'(<svg\b[^>]*?) width="[^"]*" height="[^"]*"', r"\1", drawing, count=1)

    return re.sub(r"<img\b[^>]*>", replaced, body)


def find_edges(panel):
    """The edges of a panel, in points."""
    return {edge: float(panel[edge]) for edge in ("left", "right", "top", "bottom")}


def split_rows_of_panels(drawing):
    """The drawing once for each row of its panels, which is alone below the legend. Where rows
    share an axis, its numbers and its name appear below each."""
    panels = [(panel[0], find_edges(panel)) for panel in PANEL.finditer(drawing)]
    if len({its["top"] for _, its in panels}) < 2:
        return [drawing]
    left, top, width, height = map(float, BOX.search(drawing)[1].split())
    lowest = max(its["bottom"] for _, its in panels)
    below = {its["left"]: panel for panel, its in panels if its["bottom"] == lowest}
    rows = {its["top"]: its["bottom"] for _, its in reversed(panels)}
    drawings = []
    for upper, lower in sorted(rows.items()):
        up, row = min(rows) - upper, drawing
        for panel, its in panels:
            drawn_panel = "".join(DEFINED.findall(panel))  # marks that other panels use too
            if its["top"] < lower and upper < its["bottom"]:
                drawn_panel = add_axis_from_below(
                    panel, below.get(its["left"], panel), its["bottom"] - lowest
                )
                drawn_panel = drawn_panel.replace(
                    "<g ", f'<g transform="translate(0 {up:.2f})" ', 1
                )
            row = row.replace(panel, drawn_panel)
        visible_height = lower + up + height - lowest
        drawings.append(
            BOX.sub(f'viewBox="{left:g} {top:g} {width:g} {visible_height:.0f}"', row, count=1)
        )
    return drawings


def add_axis_from_below(panel, below, up):
    """A panel with the numbers and the name of the axis that it shares with the one ``below``."""
    own_axis, axis_below = (AXIS.search(text)[0] for text in (panel, below))
    own_words = {SAID.search(word)[1] for word in WORDS.findall(own_axis)}
    missing = [word for word in WORDS.findall(axis_below) if SAID.search(word)[1] not in own_words]
    same = TICKS.findall(own_axis) == TICKS.findall(axis_below)
    all_but_one = len(WORDS.findall(axis_below)) == len(own_words) + 1
    if own_words and all_but_one and len(missing) == 1:
        same = True  # only the name is missing
    if not same or not missing:
        return panel
    raised = f'   <g transform="translate(0 {up:.2f})">\n{"".join(missing)}   </g>\n'
    return panel.replace(own_axis, own_axis + raised)


def cut_to_one_panel(drawing):
    """The drawing with only one of several panels, and the legend. From panels below each other it
    keeps the first; from a grid the last one on the left."""
    first, *others = [find_edges(panel) for panel in PANEL.finditer(drawing)] or [{}]
    neighbours = [
        its for its in others if its["top"] == first["top"] and its["left"] > first["right"]
    ]
    rows = split_rows_of_panels(drawing)
    if not neighbours:
        return rows[0]
    cut = rows[-1]
    for panel in PANEL.finditer(cut):
        if float(panel["left"]) > first["right"]:
            cut = cut.replace(panel[0], "".join(DEFINED.findall(panel[0])))
    left, top, _, height = map(float, BOX.search(cut)[1].split())
    width = (first["right"] + neighbours[0]["left"]) / 2 - left
    return BOX.sub(f'viewBox="{left:g} {top:g} {width:.0f} {height:g}"', cut, count=1)


def repeat_figure_in_story(soup):
    """Repeat the figure that it names first in the story that opens a chapter."""
    for box in soup.select(".story"):
        link = box.find("a", href=re.compile("^#fig-"))
        if figure := link and soup.find(id=link["href"][1:]):
            # What was drawn into the page waits as a comment: the last one, after its style.
            drawings = figure.find_all("img") or figure.find_all(
                string=lambda s: type(s) is Comment
            )
            hero = copy.copy(drawings[-1])
            if not isinstance(hero, Comment):
                hero["data-hero"] = ""
            box.p.insert_after(hero)


def add_provenance(soup, images):
    """Write how each figure was made below its caption, or below a figure without one."""
    for image in soup.select(".cell_output img"):
        path = images.get(image.get("src", "").rsplit("/", 1)[-1])
        if path is None or path.suffix != ".svg":
            continue
        note = MADE.search(path.read_text("utf-8")[:4000])
        if note is None:
            continue
        line = soup.new_tag("p", attrs={"class": "made"})
        line.string = html.unescape(note[1])
        figure = image.find_parent("figure")
        if figure and figure.figcaption:
            figure.figcaption.append(line)
        else:
            image.insert_after(line)


def add_alternative_texts(soup):
    """Replace an alternative text that is only a file name by the picture's caption."""
    for image in soup.select("figure img, .cell_output img"):
        if not image.get("alt") or re.search(r"\.(png|svg)$", image["alt"]):
            figure = image.find_parent("figure")
            words = (
                figure.figcaption.get_text(" ", strip=True) if figure and figure.figcaption else ""
            )
            image["alt"] = (words or "A figure; the text beside it says what it shows.")[:250]


def arrange_tables(soup):
    """Make every table of the page readable on a telephone and by a screen reader."""
    for table in soup.find_all("table"):
        if table.find_parent(class_="highlight"):
            continue
        rows = [row for row in table.select("tbody tr") if row.find(["td", "th"])]
        grid = [_cells_by_column(row) for row in table.select("thead tr")]
        heads = _name_crossing_headers(_join_headers(grid), grid)
        for cell in table.select("thead th"):
            if cell.get_text(strip=True):
                cell["scope"] = "col"
            else:  # an empty header carries no information
                cell.name = "td"
        _repeat_spanning_headers(soup, rows)
        for row in rows:
            for cell, head in zip(_cells_by_column(row), heads, strict=False):
                if cell is not None and cell.name == "th":
                    cell["scope"] = "row"
                    if head and re.match(r"[-\d∞]|inf$", cell.get_text(strip=True)):
                        cell["data-label"] = head  # a bare number needs its name on a card
                elif cell is not None and head:
                    cell["data-label"] = head
        _mark_kinds_of_columns(grid, rows)
        if _count_columns(map(_cells_by_column, rows)) > 3:
            table["class"] = [*(table.get("class") or []), "cards"]
        box = table.find_parent(class_="pst-scrollable-table-container") or table.wrap(
            soup.new_tag("div", attrs={"class": "pst-scrollable-table-container"})
        )
        name = table.caption.get_text(" ", strip=True) if table.caption else ", ".join(heads)
        box.attrs |= {"tabindex": "0", "role": "region", "aria-label": f"Table: {name}"[:120]}
        _fold_long_table(soup, box, rows)


def _cells_by_column(row):
    """The cells of a row by column; a cell that spans several is followed by None."""
    out = []
    for cell in row.find_all(["td", "th"], recursive=False):
        out += [cell, *[None] * (int(cell.get("colspan", 1)) - 1)]
    return out


def _count_columns(rows):
    return max(map(len, rows), default=0)


def _join_headers(grid):
    """The label of each column: the last words of its header rows, after the header of its group
    ("mean, loss")."""
    words = [""] * _count_columns(grid)
    for row in grid:
        group = ""
        for k, cell in enumerate(row):
            own = cell.get_text(" ", strip=True) if cell is not None else ""
            if cell is not None:
                group = own if int(cell.get("colspan", 1)) > 1 else ""
            if group:
                words[k] = f"{group}, "
            elif own:
                words[k] = (words[k] if words[k].endswith(", ") else "") + own
    return [word.removesuffix(", ") for word in words]


def _mark_kinds_of_columns(grid, rows):
    """Mark whether each column holds numbers or sentences, which decides its alignment."""
    body = [_cells_by_column(row) for row in rows]
    for k in range(_count_columns(body)):
        cells = [row[k] for row in body if k < len(row) and row[k] is not None]
        texts = [cell.get_text(" ", strip=True) for cell in cells if cell.name == "td"]
        if not any(texts):
            continue
        kind = "number" if all(map(NUMBER.match, filter(None, texts))) else ""
        if any(len(text) > SENTENCE and not NUMBER.match(text) for text in texts):
            kind = "words"
        for cell in [*cells, *(row[k] for row in grid if k < len(row) and row[k] is not None)]:
            if kind:
                cell["class"] = [*(cell.get("class") or []), kind]


def _name_crossing_headers(heads, grid):
    """The headers of a cross table with the name of the quantity: "ε′ = 1" for "1"."""
    if len(grid) < 2:
        return heads
    words = [[cell.get_text(strip=True) if cell else "" for cell in row] for row in grid]
    rows = sum(1 for word in words[-1] if word)  # the last row names the columns of row headers
    axis = words[0][rows - 1] if rows and not any(words[-1][rows:]) else ""
    return [f"{axis} = {h}" if axis and k >= rows and h else h for k, h in enumerate(heads)]


def _repeat_spanning_headers(soup, rows):
    """Repeat a header that spans several rows in each of them, for cards only."""
    open_ = {}  # column: (rows left, header)
    for row in rows:
        for k in sorted(open_):
            left, head = open_[k]
            again = soup.new_tag("th", attrs={"class": "again"})
            again.string = head.get_text(" ", strip=True)
            row.insert(k if k < len(_cells_by_column(row)) else len(row.contents), again)
            open_[k] = (left - 1, head)
        open_ = {k: v for k, v in open_.items() if v[0] > 0}
        for k, cell in enumerate(_cells_by_column(row)):
            if cell is not None and int(cell.get("rowspan", 1)) > 1:
                open_[k] = (int(cell["rowspan"]) - 1, cell)


def _fold_long_table(soup, box, rows):
    """Hide the later rows of a long table until a reader opens it."""
    if len(rows) <= ROWS + 3:
        return
    for row in rows[ROWS:]:
        row["class"] = [*(row.get("class") or []), "more"]
    details = soup.new_tag("details", attrs={"class": "more-rows"})
    details.append(soup.new_tag("summary"))
    details.summary.string = f"{len(rows) - ROWS} more rows"
    box.insert_before(details)


def keep_printed_columns(soup):
    """Keep a printed table, with its aligned columns, from being broken into lines."""
    for box in soup.select(".cell_output .stream"):
        if len(re.findall(r"^.*\S {2,}\S", box.get_text(), re.MULTILINE)) > 2:
            box["class"] = [*box["class"], "columns"]


def join_numbers_and_signs(soup):
    """Keep a number and its per cent sign on one line, and a formula and the stop after it. A name
    in code is broken after its stops and underscores before it is broken anywhere else."""
    for text in soup.select(".pre"):
        if text.string and len(text.string) > 9:
            first, *others = re.split(r"(?<=\w[._/=(,])(?=\w)", text.string)
            text.string.replace_with(first)
            for part in others:
                text.extend([soup.new_tag("wbr"), part])
    for formula in soup.select("span.math"):
        after = formula.next_sibling
        stop = re.match(r"[.,;:?!)\]”’]+", after) if isinstance(after, NavigableString) else None
        if stop:
            wrapper = formula.wrap(soup.new_tag("span", attrs={"class": "unparted"}))
            wrapper.append(stop[0])
            after.replace_with(after[stop.end() :])
    for text in soup.find_all(string=re.compile(r"\d %")):
        if not text.find_parent(["pre", "code", "script", "style"]):
            text.replace_with(re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text))


CHECKED = re.compile(r'check\("(ex-[\w-]+)",\s*(.*)\)$')
"""How a folded solution names the right answer."""


@functools.cache
def load_checks():
    """What the page needs for each exercise that checks a number or words by itself, by label."""
    path = Path(__file__).parents[1] / "crtcourse" / "exercises.yml"
    rows = yaml.safe_load(path.read_text("utf-8"))
    return {
        row["id"]: {
            "kind": row["kind"],
            "wants": row["wants"],
            "hints": row["hints"],
            "tolerance": row.get("tolerance", 0.01),
            "wrong": {str(mistake): why for mistake, why in (row.get("wrong") or {}).items()},
        }
        for row in rows
        if row["kind"] in ("number", "words")
    }


def add_answer_fields(soup):
    """Add a field for the answer below each exercise."""
    right = {}
    for code in soup.select(".solution code"):
        if match := CHECKED.match(code.get_text()):
            right[match[1]] = match[2].strip("\"'")
    for box in soup.select("div.exercise[id]"):
        name = box["id"]
        checks_itself = name in load_checks() and name in right
        form = soup.new_tag("form", attrs={"class": "answer", "data-id": name})
        label = soup.new_tag("label", attrs={"for": f"answer-{name}"})
        field = soup.new_tag("input" if checks_itself else "textarea", id=f"answer-{name}")
        field["autocomplete"] = "off"
        label.string = (
            "What do you expect? Write it down before you look; it stays in this browser."
        )
        if checks_itself:
            form.attrs |= {"data-asked": json.dumps(load_checks()[name]), "data-right": right[name]}
            label.string = f"Your answer, {load_checks()[name]['wants']}:"
        else:
            field["rows"] = "2"
        form.extend([label, field])
        if checks_itself:
            button = soup.new_tag("button", type="submit")
            button.string = "Check"
            form.append(button)
        form.append(soup.new_tag("output", attrs={"aria-live": "polite"}))
        box.insert_after(form)
    if soup.select_one(".answer"):
        soup.append(soup.new_tag("script", src="../_static/answers.js", defer=""))


@functools.cache
def load_glossary():
    """Glossary words for prose: for each, the pattern that finds it, its anchor, its meaning."""
    rows = yaml.safe_load(Path(__file__).parents[1].joinpath("glossary.yml").read_text("utf-8"))
    anchors = {row["term"]: re.sub(r"\W+", "-", row["term"]) for row in rows}
    return [
        (re.compile(f"(?:{row['find']})[\\w-]*"), f"term-{anchors[term]}", row["means"])
        for term, row in ((row["term"], row) for row in rows)
        if anchors[term].isascii() and row.get("explain", True)
    ]


def link_glossary_words(soup):
    """Link the first use of each glossary word in running text to its entry; ``book.css`` shows
    its meaning to a pointer and to the keyboard."""
    prose = [
        text
        for text in soup.select("section > p")
        for text in text.find_all(string=True)
        if text.find_parent(["a", "code", "span", "strong", "em"]) is None
    ]
    for pattern, anchor, means in load_glossary():
        for k, text in enumerate(prose):
            match = pattern.search(text)
            if match is None:
                continue
            link = soup.new_tag("a", href=f"../glossary.html#{anchor}")
            link.attrs |= {"class": ["explained"], "data-means": means}
            link.string = match[0]
            before, after = (NavigableString(part) for part in (text[: match.start()],
                             text[match.end() :]))  # fmt: skip
            text.replace_with(before, link, after)
            prose[k : k + 1] = [before, after]
            break


def finish_page(app, pagename, templatename, context, doctree):
    """Finish the body of a page before it is put into its template."""
    if app.builder.name != "html" or not context.get("body"):
        return
    images = {name: Path(app.srcdir) / path for path, name in app.builder.images.items()}
    colors, kept_blocks = set(), []

    def keep(match):
        kept_blocks.append(match[0])
        return f"<!--kept {len(kept_blocks) - 1}-->"

    body = STAYS.sub(keep, context["body"])
    soup = BeautifulSoup(body, "html.parser")
    for entries in soup.select(".citation-list[role=list]"):  # its entries are not list items
        del entries["role"]
    add_alternative_texts(soup)
    repeat_figure_in_story(soup)
    add_provenance(soup, images)
    arrange_tables(soup)
    keep_printed_columns(soup)
    if pagename.startswith("chapters/"):
        link_glossary_words(soup)
        add_answer_fields(soup)
    join_numbers_and_signs(soup)
    body = re.sub(r"<!--kept (\d+)-->", lambda m: kept_blocks[int(m[1])], str(soup))
    body = SVG.sub(lambda m: colour_by_variables(m[0], colors), inline_figures(body, images))
    values = "".join(f"--fig-{color[1:]}:{darken(color)};" for color in sorted(colors))
    context["body"] = f'<style>html[data-theme="dark"]{{{values}}}</style>{body}'


def setup(app):
    """Register it. It holds no state, so pages may be written in parallel."""
    app.connect("html-page-context", finish_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
