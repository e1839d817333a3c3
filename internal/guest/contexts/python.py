"""The Python interpreter of a context.

It is read from a descriptor and run by the Template's python3, whatever that
is, so it imports little and late. Frames go over descriptors of their own;
0, 1 and 2 are the user's. A frame is its length in four bytes and a list of
texts, each after its length; the first says what it is.
"""

import builtins
import os
import signal
import sys
import types
from _thread import RLock, get_ident

REQUESTS, EVENTS, ACKS = 3, 4, 5
READ_SIZE = 1 << 14
MAX_DATA = 8 << 20  # bytes of one representation
MAX_BUNDLE = 10 << 20  # bytes of all representations of one value
MAX_TEXT = 1 << 20  # characters of text/plain
MAX_RESULTS = 256
AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
ONLY_AST = 0x400  # ast.PyCF_ONLY_AST
COROUTINE = 0x80  # inspect.CO_COROUTINE
KEPT_SOURCES = 500
INSIST = 60  # the second signal that interrupts

forked = False  # this is a copy of the interpreter that the user made
main_thread = get_ident()
lock = RLock()
received = b""  # of the next frame
waiting = b""  # frames that leave with the next
given_input = False  # this execution has something to read
holding = None  # the Whole that holds interrupts off
sources = {}  # file name of a cell to its code
running = False  # a cell is
loop = None  # the event loop, once something awaited
ending = None  # exit code that exit() asked for
results_left = 0


def receive():
    """The texts of the next frame. Each read takes what is there."""
    global received
    while True:
        size = 4 + (int.from_bytes(received[:4], "big") if len(received) >= 4 else 0)
        if size <= len(received) and size > 4:
            break
        try:
            piece = os.read(REQUESTS, max(READ_SIZE, size - len(received)))
        except KeyboardInterrupt:
            continue
        if not piece:
            os._exit(0)  # the Guest has let go
        received += piece
    body, received = received[4:size], received[size:]
    texts, at = [], 0
    while at < len(body):
        n = int.from_bytes(body[at : at + 4], "big")
        texts.append(body[at + 4 : at + 4 + n].decode("utf-8", "surrogateescape"))
        at += 4 + n
    return texts


class Whole:
    """Holds interrupts and other threads off while frames are under way."""

    def __enter__(self):
        global holding
        self.late = False
        self.handler = None
        handler = signal.getsignal(signal.SIGINT)
        if handler is not ignore and get_ident() == main_thread:  # where interrupts come
            holding = self
            signal.signal(signal.SIGINT, self.defer)
            self.handler = handler or signal.default_int_handler
        lock.acquire()

    def defer(self, *_):
        self.late = True

    def __exit__(self, *_):
        global holding
        lock.release()
        if self.handler is None:
            return
        signal.signal(signal.SIGINT, self.handler)
        holding = None
        if self.late and running:
            raise KeyboardInterrupt


def insist(*_):
    """Interrupts although SIGINT was ignored, as it is while a child is waited for."""
    if holding is not None:
        holding.late = True
    elif running:
        raise KeyboardInterrupt


def ignore(*_):
    pass


def frame(*texts):
    parts = [b""]
    for text in texts:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        parts += [len(data).to_bytes(4, "big"), data]
    body = b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def send(*texts, acknowledged=False):
    """Sends a frame, and before it those that wait for one."""
    with Whole():
        put(frame(*texts))
        if acknowledged and not os.read(ACKS, 1):
            os._exit(0)


def put(data):
    """Writes whole frames. The caller holds the lock."""
    global waiting
    view, waiting = memoryview(waiting + data), b""
    while view:
        view = view[os.write(EVENTS, view) :]


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


# Results.

REPRESENTATIONS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def plain(value):
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr failed: {type(error).__name__}>"
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}... ({len(text) - MAX_TEXT} characters more)"
    return text


def encoded(mime, data):
    """The text that carries data of a type: base64 for bytes, JSON for objects."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        import base64

        return base64.b64encode(bytes(data)).decode()
    if isinstance(data, str) and mime != "application/json":
        return data
    import json

    try:
        return json.dumps(data, default=str, allow_nan=False)
    except ValueError:  # a number that JSON does not have
        return json.dumps(finite(data), default=str)


def finite(data):
    if isinstance(data, float):
        return data if data - data == 0 else None
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return data


def ask(value, method):
    """What a representation method of value gives, without its metadata."""
    if isinstance(value, type):
        return None  # a class holds the methods of its instances
    found = getattr(value, method, None)
    if not callable(found):
        return None
    data = found()
    if method != "_repr_json_" and isinstance(data, tuple) and len(data) == 2:
        data = data[0]
    return data


def bundle(value):
    """Every representation of value, by type."""
    data = {}
    try:
        whole = ask(value, "_repr_mimebundle_")
        if isinstance(whole, dict):
            data.update(whole)
    except Exception:
        pass
    for method, mime in REPRESENTATIONS:
        if mime in data:
            continue
        try:
            found = ask(value, method)
        except Exception:
            continue
        if found is not None:
            data[mime] = found
    if is_figure(value):
        add_picture(value, data)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, getattr(pandas, "DataFrame", ())):
        add(data, "e2b/data", lambda: notebook("table_of")(value))
    if "text/plain" not in data:
        data["text/plain"] = plain(value)
    return data


def add(data, mime, make):
    """Adds a representation, if it can be made."""
    try:
        made = make()
    except Exception:
        return
    if made is not None:
        data[mime] = made


def notebook(name):
    """What a notebook has beyond the language, compiled when it is needed first."""
    if name not in globals():
        exec(compile(NOTEBOOK, "<notebook>", "exec"), globals())
    return globals()[name]


def emit(data, main):
    """Sends one result, after all that was printed before it."""
    global results_left, waiting
    results_left -= 1
    texts, room = [], MAX_BUNDLE
    for mime, content in data.items():
        try:
            text = encoded(mime, content).encode("utf-8", "replace")
        except Exception:
            continue
        if len(text) <= min(MAX_DATA, room):
            texts += [str(mime), text]
            room -= len(text)
    flush()
    if results_left < 0:
        send("dropped")
    elif main:
        waiting += frame("result", "1", *texts)  # what follows is the end of the cell
    else:
        send("result", "0", *texts, acknowledged=True)


print_by_parts = builtins.print


def print_at_once(*values, sep=" ", end="\n", file=None, flush=False):
    """print with one write instead of one for each part, because each is told."""
    to = sys.stdout if file is None else file
    if to not in (sys.stdout, sys.stderr) or to is None or not isinstance(sep, str) or not isinstance(end, str):
        return print_by_parts(*values, sep=sep, end=end, file=file, flush=flush)
    to.write(sep.join(map(str, values)) + end)
    if flush:
        to.flush()


print_at_once.__name__ = print_at_once.__qualname__ = "print"
print_at_once.__doc__ = builtins.print.__doc__


def display(*values, **options):
    """Shows values with all their representations, as a notebook does."""
    if forked:
        return print(*values)
    for value in values:
        if options.get("raw") and isinstance(value, dict):
            emit(value, False)
        elif is_figure(value):
            show_figure(value, False)
        else:
            emit(bundle(value), False)


# Figures of matplotlib.


def is_figure(value):
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


def add_picture(figure, data):
    if "image/png" not in data:
        import io

        image = io.BytesIO()
        figure.savefig(image, format="png", bbox_inches="tight")
        data["image/png"] = image.getvalue()
    add(data, "e2b/chart", lambda: notebook("chart_of")(figure))


def show_figure(figure, main):
    emit(bundle(figure), main)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)


def show_figures(*_, **__):
    """Shows and closes every open figure; it is also plt.show."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or forked:
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if figure.axes or figure.texts or figure.images:
            show_figure(figure, False)
        else:
            pyplot.close(figure)


class AtImport:
    """Changes pyplot as soon as it is imported, and stands in for IPython where
    that is missing."""

    def find_spec(self, name, path=None, target=None):
        if name not in ("matplotlib.pyplot", "IPython"):
            return None
        sys.meta_path.remove(self)
        import importlib.util

        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if name == "IPython" and spec is None:
            return self.stand_in(importlib.util)
        if spec is not None and spec.loader is not None:
            self.after(spec.loader, at_ipython if name == "IPython" else at_pyplot)
        return spec

    def after(self, loader, change):
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            change(module)

        loader.exec_module = exec_module

    def stand_in(self, util):
        modules = notebook("stand_in")()
        sys.modules["IPython.display"] = modules["IPython.display"]
        loader = type("Loader", (), {"create_module": lambda self, spec: modules["IPython"], "exec_module": lambda self, module: None})
        return util.spec_from_loader("IPython", loader())


def at_ipython(_):
    for name in ("IPython.core.display_functions", "IPython.display"):
        if name in sys.modules:
            sys.modules[name].display = display


def at_pyplot(pyplot):
    pyplot.show = show_figures
    try:
        notebook("remember_boxes")(sys.modules["matplotlib.axes"].Axes)
    except Exception:
        pass  # of a version that draws boxes otherwise


# Running code.


def parse(code, name):
    try:
        return parse_as_is(code, name)
    except SyntaxError as error:
        wrong = error
    for other in notebook("without_indent")(code):
        try:
            return parse_as_is(other, name)
        except SyntaxError as error:
            wrong = error if wrong.msg == "unexpected indent" else wrong
    raise wrong


def parse_as_is(code, name):
    flags = ONLY_AST | AWAIT
    try:
        return compile(code, name, "exec", flags)
    except SyntaxError as error:
        other = notebook("without_magics")(code, error)
        if other is None:
            raise
    main.__dict__.update(__shell__=notebook("run_shell"), __magic__=notebook("run_magic"), __write__=notebook("write_file"))
    return compile(other, name, "exec", flags)


def compiled(code, name):
    """The statements of code, and its last expression, either of them None."""
    tree = parse(code, name)
    import _ast

    last = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr) and not code.rstrip().endswith(";"):
        last = compile(_ast.Expression(tree.body.pop().value), name, "eval", AWAIT)
    first = compile(tree, name, "exec", AWAIT) if tree.body else None
    return first, last


def evaluate(code):
    """Runs one code object and what it awaits."""
    global loop
    if not code.co_flags & COROUTINE:
        return eval(code, main.__dict__)
    import asyncio

    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(eval(code, main.__dict__))
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():
            task.cancel()
            try:
                loop.run_until_complete(task)
            except BaseException:
                pass
        raise


def remember(name, code):
    sources[name] = code
    while len(sources) > KEPT_SOURCES:
        del sources[next(iter(sources))]
    lines = sys.modules.get("linecache")
    if lines is not None:
        lines.cache[name] = (len(code), None, code.splitlines(True), name)


def trace(error, name):
    """The traceback of error without this file's frames."""
    import linecache
    import traceback

    for known, code in sources.items():
        linecache.cache[known] = (len(code), None, code.splitlines(True), known)
    seen = set()

    def strip(e):
        if e is None or id(e) in seen:
            return
        seen.add(id(e))
        tb = e.__traceback__
        while tb is not None and tb.tb_frame.f_globals is globals():
            tb = tb.tb_next
        e.__traceback__ = tb
        last = None  # frame of the user's
        while tb is not None:
            if tb.tb_frame.f_globals is not globals():
                last = tb
            tb = tb.tb_next
        if last is not None:
            last.tb_next = None
        strip(e.__cause__)
        strip(e.__context__)

    strip(error)
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def report(error, name):
    kind = type(error)
    try:
        value = str(error)
    except Exception:
        value = "<its text failed>"
    try:
        text = trace(error, name)
    except BaseException:
        text = f"{kind.__name__}: {value}\n"
    send("error", kind.__name__, value[:MAX_TEXT], text[:MAX_TEXT])


def status_of(leave):
    """The exit code that a SystemExit asks for."""
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code & 0xFF
    print(leave.code, file=sys.stderr)
    return 1


def run(code, name):
    """Runs a cell and returns its exit code."""
    global running
    try:
        remember(name, code)
        first, last = compiled(code, name)
        if first is not None:
            evaluate(first)
        if last is not None:
            value = evaluate(last)
            if value is not None and not forked:
                builtins._ = value
                if is_figure(value):
                    show_figure(value, True)
                else:
                    emit(bundle(value), True)
        show_figures()
        return 0
    except SystemExit as leave:
        return status_of(leave)
    except BaseException as error:
        running = False
        if forked:
            sys.stderr.write(trace(error, name))
            return 1
        flush()
        report(error, name)
        return 130 if isinstance(error, KeyboardInterrupt) else 1


class Leave:
    """exit and quit: they end the interpreter, with all that it holds."""

    def __repr__(self):
        return "exit() ends this interpreter"

    def __call__(self, code=None):
        global ending
        leave = SystemExit(code)
        if not forked:
            ending = True
        raise leave


def reseed(seed):
    """Makes generators of random numbers differ from those of any copy."""
    data = os.urandom(32) + bytes.fromhex(seed)
    if "random" in sys.modules:
        sys.modules["random"].seed(data)
    names = getattr(getattr(sys.modules.get("tempfile"), "_name_sequence", None), "_rng", None)
    if names is not None:
        names.seed(data)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed([int.from_bytes(data[i : i + 4], "big") for i in range(0, 32, 4)])
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int.from_bytes(data[:8], "big") >> 1)
    openssl = sys.modules.get("_ssl")
    if openssl is not None:
        openssl.RAND_add(data, float(len(data)))


def awake(*_):
    """Heeds the signal that tells of a restore: there may be copies."""
    reseed("")


class StdinNotImplementedError(NotImplementedError, EOFError):
    """input() was called, and nobody is there to answer."""

    __module__ = "builtins"


ask_stdin = builtins.input


def ask_nobody(prompt="", /):
    """input, for an execution that was given something to read."""
    if not given_input:
        raise StdinNotImplementedError("input() cannot ask anybody: give the execution its stdin, or set the value in the code")
    return ask_stdin(prompt)


ask_nobody.__name__ = ask_nobody.__qualname__ = "input"


def open_stdin():
    sys.stdin = open(0, "r", closefd=False)


def surround(env, cwd):
    """Changes environment and folder, and returns what undoes it."""
    before = {key: os.environ.get(key) for key in env}
    was = None
    if cwd:
        try:
            was = os.getcwd()
        except OSError:
            pass
        os.chdir(cwd)
    os.environ.update(env)

    def undo():
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        if was is not None:
            try:
                os.chdir(was)
            except OSError:
                pass

    return undo


def execute(count, code, cwd, stdin, seed, lasting, *pairs):
    global results_left, ending, running, holding, given_input
    results_left, ending, holding = MAX_RESULTS, None, None
    if seed:
        reseed(seed)
    if lasting:  # that many variables stay: this is a copy, and they say whose
        own, pairs = pairs[: 2 * int(lasting)], pairs[2 * int(lasting) :]
        os.environ.update(zip(own[::2], own[1::2]))
    given_input = stdin == "full"
    if stdin:
        open_stdin()
    try:
        undo = surround(dict(zip(pairs[::2], pairs[1::2])), cwd)
    except OSError as error:
        send("error", type(error).__name__, str(error), "")
        return 1
    try:
        status, running = 130, True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if signal.getsignal(INSIST) is not insist:
            signal.signal(INSIST, insist)
        status = run(code, f"<cell {count}>")
        running = False
    except BaseException as error:  # an interrupt that came while another was told
        running = False
        if not forked:
            send("error", type(error).__name__, str(error), "")
    finally:
        running = False
        signal.signal(signal.SIGINT, ignore)
    flush()
    if forked:
        os._exit(status)  # a fork of the user's ran to the end of the cell
    undo()
    return status


def become(cwd, *pairs):
    """Takes the place of an interpreter that would be started now."""
    os.environ.update(zip(pairs[::2], pairs[1::2]))
    os.chdir(cwd)


def serve():
    while True:
        texts = receive()
        if texts[0] == "become":
            become(*texts[1:])
            continue
        try:
            status = execute(*texts)
        except KeyboardInterrupt:
            status = 130
        if ending:
            leave(status)
        send("done", str(status))


def leave(status):
    """Ends as a program ends: what was registered for it runs."""
    import atexit

    try:
        atexit._run_exitfuncs()
    except BaseException:
        pass
    flush()
    put(b"")
    os._exit(status)


def take_note_of_fork():
    global forked
    forked = True


def prepare():
    for fd in (REQUESTS, EVENTS, ACKS):
        os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, ignore)
    signal.signal(INSIST, insist)
    os.register_at_fork(after_in_child=take_note_of_fork)
    signal.signal(signal.SIGURG, awake)
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.argv = [""]
    sys.path[0] = ""
    sys.modules["__main__"] = main
    main.__dict__.update(__builtins__=builtins, __name__="__main__")
    builtins.print = print_at_once
    builtins.input = ask_nobody
    builtins.display = display
    builtins.exit = builtins.quit = Leave()
    sys.meta_path.insert(0, AtImport())


main = types.ModuleType("__main__", None)
prepare()
serve()
