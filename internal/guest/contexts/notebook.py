"""What a notebook has beyond the language, for the Python interpreter of a
context: the data of charts, tables and the lines that begin with % and !.

It is compiled when it is needed first, in the interpreter's own namespace, and
imports nothing of matplotlib or pandas that the user's code has not imported.
"""

import math
import re

MAX_POINTS = 100_000  # of one chart
MAX_CELLS = 100_000  # of one table


# Charts.


def chart_of(figure):
    """The data of a figure of matplotlib: one chart, or all in a superchart."""
    charts = [axes_chart(axes) for axes in figure.axes if axes.get_visible()]
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    return {"type": "superchart", "title": figure.get_suptitle() or None if hasattr(figure, "get_suptitle") else None, "elements": charts}


def axes_chart(axes):
    title = axes.get_title() or axes.get_title("left") or axes.get_title("right") or None
    for kind, describe in (("pie", pie), ("box_and_whisker", boxes), ("bar", bars), ("line", lines), ("scatter", scatter)):
        chart = describe(axes)
        if chart:
            return {"type": kind, "title": title, **chart}
    return {"type": "unknown", "title": title, "elements": []}


def pie(axes):
    from matplotlib.patches import Wedge

    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    if not wedges:
        return None
    labels = [text.get_text() for text in axes.texts]
    elements = []
    for i, wedge in enumerate(wedges):
        label = named(wedge.get_label()) or (labels[i] if i < len(labels) else "")
        elements.append({"label": label, "angle": number(abs(wedge.theta2 - wedge.theta1)), "radius": number(wedge.r)})
    return {"elements": elements}


def boxes(axes):
    drawn = getattr(axes, "_cloud_sandbox_boxes", None)
    if not drawn:
        return None
    elements = []
    for place, stats, upright in drawn:
        label = label_at(axes.xaxis if upright else axes.yaxis, place) or str(stats.get("label", "") or "") or f"{place:g}"
        elements.append({
            "label": label, "min": number(stats["whislo"]), "first_quartile": number(stats["q1"]), "median": number(stats["med"]),
            "third_quartile": number(stats["q3"]), "max": number(stats["whishi"]),
            "outliers": [number(v) for v in list(stats.get("fliers", ()))[:MAX_POINTS]],
        })  # fmt: skip
    return {**plane(axes), "elements": elements}


def remember_boxes(axes_class):
    """Has axes remember what bxp, which draws all boxes, is given."""
    draw = axes_class.bxp

    def bxp(self, bxpstats, positions=None, *rest, **options):
        upright = options.get("orientation", "vertical") != "horizontal" and options.get("vert") is not False
        places = list(positions) if positions is not None else list(range(1, len(bxpstats) + 1))
        self.__dict__.setdefault("_cloud_sandbox_boxes", []).extend(zip(map(float, places), bxpstats, [upright] * len(places)))
        return draw(self, bxpstats, positions, *rest, **options)

    bxp.__doc__ = draw.__doc__
    axes_class.bxp = bxp


def bars(axes):
    from matplotlib.container import BarContainer

    elements = []
    for container in axes.containers:
        if not isinstance(container, BarContainer):
            continue
        upright = getattr(container, "orientation", "vertical") != "horizontal"
        axis = axes.xaxis if upright else axes.yaxis
        for bar in container.patches:
            place = bar.get_x() + bar.get_width() / 2 if upright else bar.get_y() + bar.get_height() / 2
            value = bar.get_height() if upright else bar.get_width()
            label = label_at(axis, place, abs(bar.get_width() if upright else bar.get_height())) or f"{place:g}"
            elements.append({"label": label, "group": named(container.get_label()), "value": number(value)})
    return {**plane(axes), "elements": elements[:MAX_POINTS]} if elements else None


def lines(axes):
    elements = []
    for line in axes.get_lines():
        if line.get_transform() != axes.transData:
            continue  # of the whole axes, as axhline draws them
        x, y = line.get_xdata(orig=True), line.get_ydata(orig=True)
        label = line.get_label()
        elements.append({"label": named(label) or f"Line {order(label, len(elements))}", "points": points(axes, x, y)})
    return {**plane(axes), **scales(axes), "elements": elements} if elements else None


def scatter(axes):
    from matplotlib.collections import PathCollection

    elements = []
    for group in axes.collections:
        if isinstance(group, PathCollection):
            offsets = group.get_offsets()
            label = group.get_label()
            place = points(axes, [p[0] for p in offsets], [p[1] for p in offsets])
            elements.append({"label": named(label) or f"Dataset {order(label, len(elements))}", "points": place})
    return {**plane(axes), **scales(axes), "elements": elements} if elements else None


def points(axes, x, y):
    return [[coordinate(axes.xaxis, a), coordinate(axes.yaxis, b)] for a, b in list(zip(x, y))[:MAX_POINTS]]


def coordinate(axis, value):
    """A value as it stands on an axis: a time in ISO 8601, a word, or a number."""
    kind = scale(axis)
    if kind == "categorical":
        return value if isinstance(value, str) else label_at(axis, value) or number(value)
    if kind == "datetime":
        from matplotlib.dates import num2date

        try:
            return num2date(axis.convert_units(value)).replace(tzinfo=None).isoformat()
        except Exception:
            return str(value)
    return number(value)


def scale(axis):
    """The kind of an axis."""
    converter = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
    if "Category" in converter:
        return "categorical"
    if "Date" in converter or "Datetime" in converter:
        return "datetime"
    return axis.get_scale()


def plane(axes):
    x, y = axes.get_xlabel(), axes.get_ylabel()
    return {"x_label": x or None, "y_label": y or None, "x_unit": unit(x), "y_unit": unit(y)}


def unit(label):
    """What stands in brackets at the end of a label."""
    found = re.search(r"[(\[]([^()\[\]]+)[)\]]\s*$", label or "")
    return found.group(1).strip() if found else None


def scales(axes):
    out = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        kind = scale(axis)
        ticks = list(axis.get_ticklocs())
        out[f"{name}_ticks"] = [coordinate(axis, t) if kind == "datetime" else number(t) for t in ticks]
        out[f"{name}_tick_labels"] = [text.get_text() for text in axis.get_ticklabels()]
        out[f"{name}_scale"] = kind
    return out


def label_at(axis, place, width=0.0):
    """The text of the tick at a place, or near it."""
    best = None
    for where, text in zip(axis.get_ticklocs(), axis.get_ticklabels()):
        far = abs(float(where) - float(place))
        if text.get_text() and far <= max(width / 2, 1e-9) and (best is None or far < best[0]):
            best = far, text.get_text()
    return best[1] if best else ""


def named(label):
    """A label that somebody gave; matplotlib's own begin with a low line."""
    return "" if str(label).startswith("_") else str(label)


def order(label, fallback):
    digits = re.search(r"\d+$", str(label))
    return int(digits.group()) if digits else fallback


def number(value):
    """A value that JSON can hold."""
    if isinstance(value, (bool, int, str)):
        return value
    try:
        value = float(value)
    except (TypeError, ValueError):
        return str(value)
    return value if math.isfinite(value) else None


# Tables.


def table_of(frame):
    """The columns of a pandas table, as lists, if they are not too many."""
    if frame.size > MAX_CELLS:
        return None
    missing = sys.modules["pandas"].isna
    columns = {}
    for i, name in enumerate(frame.columns):
        columns[str(name)] = [field(value, missing) for value in frame.iloc[:, i].tolist()]
    return columns


def field(value, missing):
    if hasattr(value, "isoformat"):
        return None if missing(value) else value.isoformat()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        if missing(value) is True:
            return None
    except Exception:
        pass
    return number(value)


# Lines that are not Python.

IGNORED = ("matplotlib", "load_ext", "reload_ext", "autoreload", "config", "pylab")
MAGICS = "%cd, %conda, %env, %ls, %pip, %pwd, %set_env, %time, %%bash, %%sh and %%writefile"
ASSIGNED = re.compile(r"^(\s*)([\w.,\[\]'\" ]+?)\s*=\s*([!%])(?!=)(.*)$")


class UsageError(Exception):
    """A line with % or ! that cannot be run."""

    __module__ = "builtins"


def without_magics(code, error):
    """The Python of code with magics, or None when it has none. Lines are changed
    that Python does not take, so that what only looks like a magic stays."""
    if code.lstrip().startswith("%%"):
        return cell_magic(code.lstrip())
    lines = code.split("\n")
    for _ in range(len(lines)):
        at = (error.lineno or 0) - 1
        changed = magic(lines[at]) if 0 <= at < len(lines) else None
        if changed is None:
            lines = [line if new is None else new for line, new in zip(lines, map(magic, lines))]
            break
        lines[at] = changed
        try:
            compile("\n".join(lines), "<cell>", "exec", ONLY_AST | AWAIT)
            break
        except SyntaxError as next_error:
            error = next_error
    text = "\n".join(lines)
    return None if text == code else text


def without_indent(code):
    """What IPython makes of code whose first line is indented, as in a string of a
    program: without the indent that all lines have, and without that of the first.
    Lines keep their numbers."""
    lines = code.split("\n")
    filled = [line for line in lines if line.strip()]
    if not filled or not filled[0][:1].isspace():
        return
    for space in (common_indent(filled), indent_of(filled[0])):
        if space:
            yield "\n".join(line.removeprefix(space) for line in lines)


def indent_of(line):
    return line[: len(line) - len(line.lstrip())]


def common_indent(lines):
    """The longest white space that all lines begin with."""
    least, most = min(map(indent_of, lines)), max(map(indent_of, lines))
    for i, c in enumerate(least):
        if c != most[i]:
            return least[:i]
    return least


def magic(line):
    """The Python for one line that begins with ! or %, or None."""
    space = line[: len(line) - len(line.lstrip())]
    text = line.strip()
    if text[:1] == "!":
        return f"{space}__shell__({text.lstrip('!')!r})"
    if text[:1] == "%":
        return f"{space}__magic__({text[1:]!r})"
    found = ASSIGNED.match(line)
    if found:
        space, names, kind, rest = found.groups()
        if kind == "!":
            return f"{space}{names} = __shell__({rest!r}, True)"
        return f"{space}{names} = __magic__({rest!r})"
    return None


def cell_magic(code):
    line, _, body = code.partition("\n")
    name, _, rest = line[2:].strip().partition(" ")
    rest = rest.strip()
    if name in ("bash", "sh"):
        return f"__shell__({body!r}, shell={name!r})\n"
    if name == "writefile":
        return f"__write__({rest!r}, {body!r})\n"
    return f"__magic__({'%' + name!r})\n"


def run_magic(text):
    """What a line with % does."""
    import os

    name, _, rest = text.partition(" ")
    rest = expand(rest.strip())
    if name in IGNORED:
        return None
    if name in ("pip", "conda"):
        run_shell(f"{sys.executable} -m pip {rest}" if name == "pip" else f"conda {rest}")
        import importlib

        return importlib.invalidate_caches()
    if name == "cd":
        os.chdir(os.path.expanduser(rest.strip("\"'") or "~"))
        return print(os.getcwd())
    if name == "pwd":
        return os.getcwd()
    if name == "ls":
        return run_shell(f"ls {rest}")
    if name in ("env", "set_env"):
        return environment(rest)
    if name == "time":
        import time

        began = time.perf_counter()
        try:
            return evaluate(compile(rest, "<time>", "eval"))
        except SyntaxError:
            evaluate(compile(rest, "<time>", "exec"))
        finally:
            print(f"Wall time: {time.perf_counter() - began:.3g} s")
        return None
    raise UsageError(f"%{name} is not a command here; there are {MAGICS}")


def environment(rest):
    import os

    if not rest:
        return dict(os.environ)
    name, sign, value = rest.partition("=")
    if not sign:
        name, sign, value = rest.partition(" ")
    name, value = name.strip(), value.strip()
    if not sign:
        if name not in os.environ:
            raise UsageError(f"there is no variable {name} in the environment")
        return os.environ[name]
    os.environ[name] = value
    return print(f"env: {name}={value}")


def expand(text):
    """text with {expressions} and $names of Python in their place."""

    def replaced(found):
        try:
            if found.group(1):
                return str(eval(found.group(1), main.__dict__))
            return str(main.__dict__[found.group(2)])
        except Exception:
            return found.group()  # the shell's own

    return re.sub(r"\{([^{}]+)\}|\$(\w+)", replaced, text)


def run_shell(command, captured=False, shell="sh"):
    """Runs a shell line as part of the cell; its output, in lines, if captured."""
    import subprocess

    flush()
    if shell == "sh":
        command = expand(command)
    ended = subprocess.run(["/bin/bash" if shell == "bash" else "/bin/sh", "-c", command], stdout=subprocess.PIPE if captured else None)
    main.__dict__["_exit_code"] = ended.returncode
    if captured:
        return ended.stdout.decode("utf-8", "replace").splitlines()
    return None


def write_file(rest, body):
    import os

    add = rest.startswith("-a ")
    path = os.path.expanduser(rest[3:].strip() if add else rest)
    if not path:
        raise UsageError("%%writefile needs the name of a file")
    with open(path, "a" if add else "w") as file:
        file.write(body)
    print(f"{'Appending to' if add else 'Writing'} {path}")


# IPython's displays, where IPython itself is not installed.


def stand_in():
    """Modules IPython and IPython.display with what code uses most."""
    import types

    package = types.ModuleType("IPython")
    module = types.ModuleType("IPython.display")

    def shows(name, mime):
        def __init__(self, data=None, filename=None, url=None, **_):
            if filename is None and isinstance(data, str) and len(data) < 1000 and mime.startswith("image/") and not data.lstrip().startswith("<"):
                filename = data
            if url is not None:
                raise ValueError(f"{name} takes data or a file here, not a URL")
            if filename is not None:
                with open(filename, "rb") as file:
                    data = file.read()
            self.data = data

        def bundled(self, **_):
            kind, data = mime, self.data
            if kind == "image/png" and bytes(data[:2]) == b"\xff\xd8":
                kind = "image/jpeg"
            if isinstance(data, bytes) and not kind.endswith(("png", "jpeg")):
                data = data.decode("utf-8", "replace")
            return {kind: data, "text/plain": f"<IPython.core.display.{name} object>"}

        return type(name, (), {"__init__": __init__, "_repr_mimebundle_": bundled, "__module__": "IPython.core.display"})

    for name, mime in (
        ("HTML", "text/html"), ("Markdown", "text/markdown"), ("Latex", "text/latex"), ("SVG", "image/svg+xml"), ("Image", "image/png"),
        ("JSON", "application/json"), ("Javascript", "application/javascript"), ("Pretty", "text/plain"),
    ):  # fmt: skip
        setattr(module, name, shows(name, mime))
    module.Math = type("Math", (module.Latex,), {"__init__": lambda self, data, **_: module.Latex.__init__(self, f"$\\displaystyle {data}$")})
    module.display = display
    module.clear_output = lambda wait=False: None
    package.display = module
    package.get_ipython = lambda: None
    package.__path__ = []
    return {"IPython": package, "IPython.display": module}
