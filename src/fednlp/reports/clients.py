"""The section "Clients" of a report: from worst to best, and by name where they are few."""

from collections.abc import Iterator

from fednlp.formatting.units import metric_title
from fednlp.reports import plots
from fednlp.reports.best import leaders
from fednlp.reports.charts import draw
from fednlp.reports.client_table import clients_table, method_columns
from fednlp.reports.document import Block, Grid, Picture
from fednlp.reports.groups import Groups, group_reference, metric_of
from fednlp.reports.render import grid
from fednlp.reports.table import Row, Table


def client_blocks(groups: Groups) -> Iterator[Block]:
    """Yield the table of few clients, the curves from worst to best, and of many clients of one method a histogram."""
    metric = metric_of(groups)
    table = clients_table(groups)
    if table is not None:
        yield _grid(table, groups)
    chart = plots.client_curves(groups, metric)
    if chart is not None:
        caption = (
            "Every client on its own test examples after the last evaluation, sorted from worst to best."
        )
        yield Picture("clients-sorted", caption, draw(chart), chart)
    if len(groups) == 1 and table is None:
        figure = plots.client_histogram(next(iter(groups.values())), metric)
        if figure is not None:
            caption = f"How many clients have which {metric_title(metric)} on their own tests."
            yield Picture("clients-histogram", caption, figure)


def _grid(table: Table, groups: Groups) -> Grid:
    """Return the table of clients as a page shows it, the best method of each client marked."""
    heads, rows = grid(table)
    methods = {
        key
        for label, runs in groups.items()
        if group_reference(runs) is None
        for key in method_columns(label)
    }
    best = {(number, place) for number, row in enumerate(table.rows) for place in _best(table, row, methods)}
    return Grid(heads[:-1], [row[:-1] for row in rows], [table.caption, *table.notes], best=best)


def _best(table: Table, row: Row, methods: set[str]) -> set[int]:
    """Return the places in a client's row of the methods that serve it best."""
    columns = {place: column for place, column in enumerate(table.columns, start=1) if column.key in methods}
    stats = {place: stat for place, column in columns.items() if (stat := row.cells[column.key])}
    return leaders(table.columns[-1], stats)
