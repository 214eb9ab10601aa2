"""Reading a page as a browser would, as far as a test asks: its tags, forms and links."""

from html.parser import HTMLParser
from typing import NamedTuple

#: Attributes that hold nothing but a script.
EVENTS = "on"


class Form(NamedTuple):
    """One form: where it goes, how, and the names and values of its fields."""

    action: str
    method: str
    fields: dict[str, str]


class Reading(HTMLParser):
    """One page, read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.forms: list[Form] = []
        self.inline: list[str] = []
        self._in: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag begins."""
        named = {name: value or "" for name, value in attrs}
        self.tags.append((tag, named))
        self._in.append(tag)
        for name, value in named.items():
            if (
                name.startswith(EVENTS)
                or name == "style"
                or name.startswith(("hx-on", "data-hx-on"))
            ):
                self.inline.append(f"<{tag} {name}={value!r}>")
            if value.strip().lower().startswith(("javascript:", "js:")):
                self.inline.append(f"<{tag} {name}={value!r}>")
        if tag == "style" or (tag == "script" and "src" not in named):
            self.inline.append(f"<{tag}>")
        if tag == "form":
            method = named.get("method", "get").lower()
            self.forms.append(Form(named.get("action", ""), method, {}))
        elif tag in ("input", "select", "textarea") and self.forms and "name" in named:
            self.forms[-1].fields[named["name"]] = named.get("value", "")

    def handle_data(self, data: str) -> None:
        """Text."""
        self.text += data

    def links(self) -> list[str]:
        """Where it leads."""
        return [named["href"] for tag, named in self.tags if tag == "a" and "href" in named]

    def acts(self) -> list[Form]:
        """Forms that change something."""
        return [form for form in self.forms if form.method == "post"]
