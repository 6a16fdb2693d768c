"""Elements of an XML file, one at a time: no DTD, no entities but XML's own, nothing fetched, bounded memory."""

from collections.abc import Collection, Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from fednlp.data.readers.text_io import LONGEST_LINE, read_chunks
from fednlp.errors import DataError

# Far deeper than any published format; a recursive reader of an element must not run out of stack.
_DEEPEST = 100


def elements(path: Path, names: Collection[str]) -> Iterator[tuple[int, Element]]:
    """Yield the outermost elements of some names, each with the number of the line where it ends.

    Args:
        path: XML, plain or gzipped.
        names: Tags as they are written, prefix and all.

    Raises:
        DataError: It is not well-formed; declares or uses entities; or an element is too long or too deep.
    """
    collector = _Collector(path, names)
    parser = collector.parser
    fed = 0
    try:
        for piece in read_chunks(path, 1 << 16, as_utf8=False):
            fed += len(piece)
            parser.Parse(piece, False)
            if fed - parser.CurrentByteIndex > LONGEST_LINE:  # a tag or a comment without end
                raise DataError(collector.message("a tag or comment without end"))
            yield from collector.taken()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise DataError(f"{path}:{error.lineno}: not well-formed XML ({reason}): mend it there") from None
    except (ValueError, LookupError) as error:
        # The encoding is unknown, or has several bytes a character.
        raise DataError(f"{path}: {error}: convert the file to UTF-8") from None
    yield from collector.taken()


class _Collector:
    """Handlers of one parser, and the elements that are whole."""

    def __init__(self, path: Path, names: Collection[str]) -> None:
        self.path, self.names = path, names
        self.done: list[tuple[int, Element]] = []
        self.builder: TreeBuilder | None = None
        self.depth = self.top = self.size = 0
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.data
        parser.StartDoctypeDeclHandler = self.doctype
        parser.EntityDeclHandler = self.entity
        parser.SkippedEntityHandler = self.entity

    def taken(self) -> list[tuple[int, Element]]:
        done, self.done = self.done, []
        return done

    def message(self, what: str) -> str:
        return f"{self.path}:{self.parser.CurrentLineNumber}: {what}: is this a file of this format?"

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise DataError(self.message(f"elements nested more than {_DEEPEST} deep"))
        if self.builder is None and name in self.names:
            self.builder, self.top, self.size = TreeBuilder(), self.depth, 0
        if self.builder is not None:
            self.grow(len(name) + sum(len(key) + len(value) for key, value in attributes.items()))
            self.builder.start(name, attributes)

    def end(self, name: str) -> None:
        if self.builder is not None:
            self.builder.end(name)
            if self.depth == self.top:
                self.done.append((self.parser.CurrentLineNumber, self.builder.close()))
                self.builder = None
        self.depth -= 1

    def data(self, text: str) -> None:
        if self.builder is not None:
            self.grow(len(text))
            self.builder.data(text)

    def grow(self, length: int) -> None:
        self.size += length
        if self.size > LONGEST_LINE:
            raise DataError(self.message(f"an element of more than {LONGEST_LINE >> 20} MiB"))

    def doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        # One that only names a DTD elsewhere is common in TMX, and is never fetched.
        if internal:
            self.entity()

    def entity(self, *_: object) -> None:
        raise DataError(
            f"{self.path}:{self.parser.CurrentLineNumber}: entities are declared or used that are not XML's own: "
            f"this is not read; write the characters themselves"
        )
