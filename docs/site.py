"""What the site has beyond the pages of docs/: hooks of mkdocs (mkdocs.yml).

The front page is the README, the gallery shows the figures of results/, and links that
leave docs/ become file names: only the checkout has what they lead to.
"""

import re
from html import unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
PICTURED = (
    "reconstructions.png", "rebuilt.png", "mse_vs_bound.png", "both_sides.png",
    "roc.png", "separation_vs_dfil.png", "success_by_eta.png", "named_and_allowed.png",
    "common_scale.png", "step_progress.png", "mse_vs_shadows.png",
)  # fmt: skip


def on_files(files: Files, config) -> Files:
    """Add the front page, the gallery and its pictures."""
    front = (ROOT / "README.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=front))
    pictures = [
        path
        for name in PICTURED
        for path in sorted((ROOT / "results").glob(f"*/{name}"))
        if "-seed" not in path.parent.name
    ]
    pictures.append(ROOT / "results" / "scale" / "scale.png")
    for path in pictures:
        where = f"gallery/{path.parent.name}/{path.name}"
        files.append(File.generated(config, where, abs_src_path=str(path)))
    files.append(File.generated(config, "gallery.md", content=gallery(pictures)))
    return files


def gallery(pictures: list[Path]) -> str:
    """Return the page of pictures, a heading per run."""
    text = [
        "# Gallery",
        "Every figure is drawn from a committed scorecard, or by the run that made it. "
        "`python -m audit report RUN figures=redraw` draws those again for which a "
        "card holds all that is drawn.",
    ]
    for run in sorted({path.parent.name for path in pictures}):
        text.append(f"## {run}")
        text += [
            f"![{p.stem.replace('_', ' ')}](gallery/{run}/{p.name}){{ loading=lazy }}"
            for p in pictures
            if p.parent.name == run
        ]
    return "\n\n".join(text) + "\n"


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Turn links to what the site does not have into the names of files.

    Pictures of results are those of the gallery.
    """
    here = Path(page.file.src_uri).parent

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path = target.partition("#")[0]
        if not path or "://" in path or files.get_file_from_path(_normal(here / path)):
            return match[0]
        inside = _normal(here / path).removeprefix("../")
        drawn = inside.replace("results/", "gallery/", 1)
        if image and files.get_file_from_path(drawn):
            return f"![{text}]({'../' * len(here.parts)}{drawn})"
        if image:
            return f"*{text}* (`{inside}`)"
        return text if text.strip("`") == inside else f"{text} (`{inside}`)"

    blocks = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(b if b.startswith("```") else LINK.sub(link, b) for b in blocks)


def on_page_content(html: str, page, config, files: Files) -> str:
    """Typeset formulas as MathML, which browsers draw without a script."""
    marked = re.compile(
        r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL
    )

    def typeset(match: re.Match[str]) -> str:
        tag, tex = match.groups()
        display = "block" if tag == "div" else "inline"
        formula = convert(unescape(tex).strip(), display=display)
        return f'<{tag} class="arithmatex">{formula}</{tag}>'

    return marked.sub(typeset, html)


def _normal(path: Path) -> str:
    """Return a path with its `..` worked out, as far as they go."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
