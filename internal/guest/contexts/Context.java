// The Java interpreter of a context.
//
// It is read from a descriptor, compiled and run by the Template's own JDK,
// whatever that is from 11 on, and is made of JShell, which is a part of that.
// Frames go over descriptors of their own; 0, 1 and 2 are the user's. A frame is
// its length in four bytes and a list of texts, each after its length; the first
// says what it is. Code runs in this JVM.

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.ExpressionSnippet;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.UnresolvedReferenceException;

public final class Context {
    static final int MAX_TEXT = 1 << 20; // characters of text/plain
    static final int MAX_FRAMES = 50; // of a stack that is shown
    static final String[] IMPORTS = {
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*", "java.util.concurrent.*",
        "java.util.function.*", "java.util.regex.*", "java.util.stream.*",
    };

    final DataInputStream requests = new DataInputStream(new FileInputStream("/proc/self/fd/3"));
    final OutputStream events = new FileOutputStream("/proc/self/fd/4");
    final Input input = new Input();
    final JShell shell;
    final Map<String, Place> places = new HashMap<>(); // of snippets, by ID
    final Map<String, String> environment = environment();

    final Semaphore handled = new Semaphore(0); // one for each WINCH
    volatile boolean running; // a cell is
    volatile boolean interrupted; // it is to end

    /** Place is where a snippet begins: its cell, and the lines before it there. */
    static final class Place {
        final String cell;
        final int lines;

        Place(String cell, int lines) {
            this.cell = cell;
            this.lines = lines;
        }
    }

    /** Failure ends a cell. */
    static final class Failure extends Exception {
        final String name;
        final String trace;

        Failure(String name, String message, String trace) {
            super(message);
            this.name = name;
            this.trace = trace;
        }
    }

    /** Input is System.in: it asks nobody, and reads what an execution was given. */
    static final class Input extends InputStream {
        private final InputStream given = new FileInputStream(FileDescriptor.in);
        volatile boolean full;

        private void check() {
            if (!full) {
                throw new UnsupportedOperationException(
                    "System.in cannot ask anybody: give the execution its stdin, or set the value in the code");
            }
        }

        @Override
        public int read() throws IOException {
            check();
            return given.read();
        }

        @Override
        public int read(byte[] b, int from, int size) throws IOException {
            check();
            return given.read(b, from, size);
        }

        @Override
        public int available() throws IOException {
            return full ? given.available() : 0;
        }
    }

    Context() throws IOException {
        System.setIn(input);
        System.setOut(new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new FileOutputStream(FileDescriptor.err), true, StandardCharsets.UTF_8));
        System.getenv().forEach((name, value) -> {
            if (System.getProperty(name) == null) System.setProperty(name, value);
        });
        shell = JShell.builder().executionEngine("local").build();
        for (String name : IMPORTS) shell.eval("import " + name + ";");
        on("INT", this::interrupt);
        on("URG", Context::reseed); // restored: there may be copies
        on("WINCH", handled::release);
    }

    public static void main(String[] args) throws IOException {
        new Context().serve();
    }

    void serve() throws IOException {
        for (;;) {
            String[] texts;
            try {
                texts = receive();
            } catch (EOFException e) {
                Runtime.getRuntime().halt(0); // the Guest has let go
                return;
            }
            send(frame("done", Integer.toString(execute(texts))));
        }
    }

    // Frames.

    String[] receive() throws IOException {
        int left = requests.readInt();
        List<String> texts = new ArrayList<>();
        while (left > 0) {
            byte[] text = new byte[requests.readInt()];
            requests.readFully(text);
            texts.add(new String(text, StandardCharsets.UTF_8));
            left -= 4 + text.length;
        }
        return texts.toArray(new String[0]);
    }

    static byte[] frame(String... texts) throws IOException {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        DataOutputStream to = new DataOutputStream(body);
        for (String text : texts) {
            byte[] data = text.getBytes(StandardCharsets.UTF_8);
            to.writeInt(data.length);
            to.write(data);
        }
        ByteArrayOutputStream whole = new ByteArrayOutputStream();
        new DataOutputStream(whole).writeInt(body.size());
        body.writeTo(whole);
        return whole.toByteArray();
    }

    void send(byte[] frames) throws IOException {
        System.out.flush();
        System.err.flush();
        events.write(frames);
    }

    static String cut(String text) {
        if (text == null) return "";
        if (text.length() <= MAX_TEXT) return text;
        return text.substring(0, MAX_TEXT) + "... (" + (text.length() - MAX_TEXT) + " characters more)";
    }

    // Running.

    int execute(String[] texts) throws IOException {
        String cell = "cell-" + texts[0];
        if (!texts[4].isEmpty()) reseed();
        if (!texts[3].isEmpty()) input.full = texts[3].equals("full");
        String folder = System.getProperty("user.dir");
        if (!texts[2].isEmpty() && !texts[2].equals(folder)) {
            String message = "a Java interpreter stays in its folder, " + folder + ": make a context with this cwd";
            send(frame("error", "UnsupportedOperationException", message, message + "\n"));
            return 1;
        }
        int first = 6 + 2 * (texts[5].isEmpty() ? 0 : Integer.parseInt(texts[5]));
        surround(pairs(texts, 6, first)); // these stay: this is a copy, and they say whose
        Runnable undo = surround(pairs(texts, first, texts.length));
        forgetInterrupts();
        interrupted = false;
        running = true;
        try {
            String value = run(cell, texts[1]);
            if (interrupted) throw interrupt(cell);
            running = false;
            if (value != null) send(frame("result", "1", "text/plain", cut(value)));
            return 0;
        } catch (Failure e) {
            running = false;
            send(frame("error", e.name, cut(e.getMessage()), cut(e.trace)));
            return interrupted ? 130 : 1;
        } finally {
            running = false;
            undo.run();
        }
    }

    static Map<String, String> pairs(String[] texts, int from, int to) {
        Map<String, String> pairs = new HashMap<>();
        for (int i = from; i + 1 < to; i += 2) pairs.put(texts[i], texts[i + 1]);
        return pairs;
    }

    /** Runs a cell, one snippet after the other; null when the last one has no value. */
    String run(String cell, String code) throws Failure {
        SourceCodeAnalysis analysis = shell.sourceCodeAnalysis();
        String value = null;
        for (String rest = code.stripLeading(); !rest.isEmpty(); ) {
            SourceCodeAnalysis.CompletionInfo info = analysis.analyzeCompletion(rest);
            if (info.completeness() == SourceCodeAnalysis.Completeness.EMPTY) break;
            // What is not complete is judged as a whole: the compiler says what is missing.
            String source = info.completeness().isComplete() ? info.source() : rest;
            String after = info.completeness().isComplete() ? info.remaining() : "";
            int lines = lines(code.substring(0, code.length() - rest.length()));
            value = null;
            for (SnippetEvent event : shell.eval(source)) {
                places.put(event.snippet().id(), new Place(cell, lines));
                if (interrupted) throw interrupt(cell);
                if (event.causeSnippet() != null) continue; // what it changed of others
                value = check(event, source);
            }
            rest = after.stripLeading();
        }
        return value;
    }

    static int lines(String text) {
        return (int) text.chars().filter(c -> c == '\n').count();
    }

    /** Returns what a snippet gives, if that is to be shown. */
    String check(SnippetEvent event, String source) throws Failure {
        Snippet snippet = event.snippet();
        if (event.exception() != null) throw failure(event.exception());
        switch (event.status()) {
            case REJECTED:
                throw refused(snippet, source);
            case RECOVERABLE_DEFINED:
            case RECOVERABLE_NOT_DEFINED:
                System.err.println("not usable yet: " + shell.unresolvedDependencies((jdk.jshell.DeclarationSnippet) snippet)
                    .collect(Collectors.joining(", ")) + " must be declared first");
                return null;
            default:
        }
        boolean shown = snippet instanceof ExpressionSnippet
            ? snippet.subKind() != Snippet.SubKind.ASSIGNMENT_SUBKIND
            : snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
        return shown ? event.value() : null;
    }

    Failure refused(Snippet snippet, String source) {
        Place place = places.get(snippet.id());
        StringBuilder trace = new StringBuilder();
        String first = null;
        for (Diag d : shell.diagnostics(snippet).collect(Collectors.toList())) {
            String message = d.getMessage(Locale.ROOT);
            if (d.isError() && first == null) first = message;
            int at = (int) Math.max(0, Math.min(d.getPosition(), source.length()));
            int begin = source.lastIndexOf('\n', at - 1) + 1;
            int end = source.indexOf('\n', at);
            String line = source.substring(begin, end < 0 ? source.length() : end);
            trace.append(place.cell).append(':').append(place.lines + lines(source.substring(0, at)) + 1).append(": ")
                .append(d.isError() ? "error: " : "warning: ").append(message).append('\n').append(line).append('\n')
                .append(" ".repeat(at - begin)).append("^\n");
        }
        if (first == null) first = "the code does not compile";
        return new Failure("CompileError", first, trace.length() == 0 ? first + "\n" : trace.toString());
    }

    Failure failure(JShellException thrown) {
        StringBuilder trace = new StringBuilder();
        Throwable e = thrown;
        for (int depth = 0; e != null && depth < 10; e = e.getCause(), depth++) {
            String message = message(e);
            trace.append(depth == 0 ? "" : "Caused by: ").append(name(e)).append(message == null ? "" : ": " + message).append('\n');
            StackTraceElement[] frames = e.getStackTrace();
            for (int i = 0; i < frames.length && i < MAX_FRAMES; i++) trace.append("\tat ").append(where(frames[i])).append('\n');
            if (frames.length > MAX_FRAMES) trace.append("\t... ").append(frames.length - MAX_FRAMES).append(" more\n");
        }
        return new Failure(name(thrown), message(thrown), trace.toString());
    }

    /** Names the class of an exception, without what JShell has put around one of the user's. */
    static String name(Throwable e) {
        String name = e instanceof EvalException ? ((EvalException) e).getExceptionClassName() : e.getClass().getName();
        return name.replaceFirst("^REPL\\.\\$JShell\\$\\w+\\$", "");
    }

    String message(Throwable e) {
        if (!(e instanceof UnresolvedReferenceException)) return e.getMessage();
        UnresolvedReferenceException u = (UnresolvedReferenceException) e;
        return u.getSnippet().source().strip().lines().findFirst().orElse("") + " needs "
            + shell.unresolvedDependencies(u.getSnippet()).collect(Collectors.joining(", "));
    }

    /** Says where a frame is, by the cell of a snippet. */
    String where(StackTraceElement f) {
        String file = f.getFileName();
        Place place = file != null && file.startsWith("#") ? places.get(file.substring(1)) : null;
        if (place == null) return f.toString();
        String name = f.getClassName().isEmpty() ? f.getMethodName() : f.getClassName() + "." + f.getMethodName();
        return (name.isEmpty() ? "" : name + " ") + "(" + place.cell + ":" + (place.lines + f.getLineNumber()) + ")";
    }

    static Failure interrupt(String cell) {
        String message = "the execution was interrupted";
        return new Failure("KeyboardInterrupt", message, "KeyboardInterrupt: " + message + "\n");
    }

    /** Heeds a signal. The compiler would warn of the class that does it. */
    static void on(String name, Runnable heed) {
        try {
            Class<?> handler = Class.forName("sun.misc.SignalHandler");
            Object proxy = Proxy.newProxyInstance(Context.class.getClassLoader(), new Class<?>[] {handler}, (self, method, given) -> {
                if (method.getName().equals("handle")) heed.run();
                return null;
            });
            Object signal = signal(name);
            signal.getClass().getMethod("handle", signal.getClass(), handler).invoke(null, signal, proxy);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static Object signal(String name) throws ReflectiveOperationException {
        return Class.forName("sun.misc.Signal").getConstructor(String.class).newInstance(name);
    }

    /** Lets interrupts of the cell before come to an end: a JVM handles signals in turn, each in a thread. */
    void forgetInterrupts() {
        try {
            Object last = signal("WINCH");
            last.getClass().getMethod("raise", last.getClass()).invoke(null, last);
            handled.tryAcquire(1, TimeUnit.SECONDS);
            ThreadGroup group = Thread.currentThread().getThreadGroup();
            while (group.getParent() != null) group = group.getParent();
            Thread[] threads = new Thread[group.activeCount() + 16];
            for (int i = group.enumerate(threads) - 1; i >= 0; i--) {
                if (threads[i].getName().equals("SIGINT handler")) threads[i].join(1000);
            }
        } catch (ReflectiveOperationException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    void interrupt() {
        if (!running) return;
        interrupted = true;
        shell.stop();
    }

    // What this JVM keeps from before a cell, or must forget.

    /**
     * Sets variables, which are properties too, and returns what undoes it. What
     * code starts has them if it asked its builder for the environment.
     */
    Runnable surround(Map<String, String> env) {
        Map<String, String> variables = new HashMap<>();
        Map<String, String> properties = new HashMap<>();
        env.forEach((name, value) -> {
            variables.put(name, environment.get(name));
            properties.put(name, System.getProperty(name));
            environment.put(name, value);
            System.setProperty(name, value);
        });
        return () -> {
            variables.forEach((name, value) -> {
                if (value == null) environment.remove(name);
                else environment.put(name, value);
            });
            properties.forEach((name, value) -> {
                if (value == null) System.clearProperty(name);
                else System.setProperty(name, value);
            });
        };
    }

    /** The variables behind System.getenv, to change; some other map where they cannot be had. */
    @SuppressWarnings("unchecked")
    static Map<String, String> environment() {
        try {
            Field behind = System.getenv().getClass().getDeclaredField("m");
            behind.setAccessible(true);
            return (Map<String, String>) behind.get(System.getenv());
        } catch (ReflectiveOperationException | RuntimeException e) {
            return new HashMap<>();
        }
    }

    /** Makes random numbers differ from those of any copy of this JVM. */
    static void reseed() {
        byte[] seed = new byte[24];
        try (FileInputStream fresh = new FileInputStream("/dev/urandom")) {
            if (fresh.readNBytes(seed, 0, seed.length) < seed.length) return;
        } catch (IOException e) {
            return;
        }
        java.nio.ByteBuffer numbers = java.nio.ByteBuffer.wrap(seed);
        Math.random(); // so that its generator is there
        try {
            Field generator = Class.forName("java.lang.Math$RandomNumberGeneratorHolder").getDeclaredField("randomNumberGenerator");
            generator.setAccessible(true);
            ((Random) generator.get(null)).setSeed(numbers.getLong());
            add(Class.forName("java.util.Random"), "seedUniquifier", numbers.getLong());
            add(Class.forName("java.util.concurrent.ThreadLocalRandom"), "seeder", numbers.getLong());
            Method local = Class.forName("java.util.concurrent.ThreadLocalRandom").getDeclaredMethod("localInit");
            local.setAccessible(true);
            local.invoke(null);
        } catch (ReflectiveOperationException | RuntimeException e) {
            // One that is made otherwise.
        }
    }

    static void add(Class<?> of, String name, long number) throws ReflectiveOperationException {
        Field field = of.getDeclaredField(name);
        field.setAccessible(true);
        ((AtomicLong) field.get(null)).addAndGet(number);
    }
}
