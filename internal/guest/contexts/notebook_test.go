package contexts

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

func TestMagics(t *testing.T) {
	s := newContexts(t, "python3")
	dir := t.TempDir()
	for _, tt := range []struct{ name, code, want string }{
		{"a command", "!echo hi", "hi\n"},
		{"its status", "!exit 3\n_exit_code", "<3 true>"},
		{"captured", "x = !printf 'a\\nb'\nx", "<['a', 'b'] true>"},
		{"with values", "name = 'w'\n!echo {name} {1 + 1} $name $HOME.${#x}", "w 2 w " + os.Getenv("HOME") + ".0\n"},
		{"in a block", "for i in range(2):\n    !echo {i}", "0\n1\n"},
		{"what only looks like one", "s = '''\n!echo no\n%cd /nowhere\n'''\ny = (7\n % 4)\n!echo $y", "3\n"},
		{"an operator", "5\\\n% 3", "<2 true>"},
		{"unbalanced", "!echo \"(\"\n!echo '[' ", "(\n[\n"},
		{"cd", "%cd " + dir, dir + "\n"},
		{"it stays", "%pwd", "<'" + dir + "' true>"},
		{"env", "%env NOTEBOOK=1", "env: NOTEBOOK=1\n"},
		{"env is there", "v = %env NOTEBOOK\nv + __import__('os').environ['NOTEBOOK']", "<'11' true>"},
		{"pip", "%pip --version", "pip "},
		{"ignored", "%matplotlib inline\n1", "<1 true>"},
		{"bash", "%%bash\nx=1\necho ${x}{a,b}", "1a 1b\n"},
		{"a file", "%%writefile f.txt\nline\n!not a command", "Writing f.txt\n"},
		{"the file", "open('f.txt').read()", "<'line\\n!not a command' true>"},
		{"unknown", "%nope 1", "UsageError: %nope is not a command here; there are %cd"},
		{"unknown cell", "%%nope\nx", "UsageError: %%nope is not a command here"},
		{"an error of Python's", "!echo no\n1 +", "SyntaxError: invalid syntax"},
		{"input", "input('? ')", "StdinNotImplementedError: input() cannot ask anybody"},
		{"IPython", "from IPython.display import display, HTML, Markdown\ndisplay(HTML('<b>'))\nMarkdown('*m*')", "<<IPython.core.display.HTML object> false><<IPython.core.display.Markdown object> true>"},
		{"indented", "    x = 1\n    if x:\n        x += 1\n    x", "<2 true>"},
		{"indented by tabs", "\tx = 3\n\n\tx", "<3 true>"},
		{"indented after an empty line", "\n    import math\n\n    math.floor(2.5)\n    ", "<2 true>"},
		{"only its first line", "    x = 4\nx", "<4 true>"},
		{"its last line less", "    x = 5\n    x\n  ", "<5 true>"},
		{"an indented comment first", "    # one\nif True:\n    x = 6\nx", "<6 true>"},
		{"indented commands", "    !echo in\n    x = 7\n    %pwd\n    x", "in\n<7 true>"},
		{"indented bash", "    %%bash\n    echo in\n", "in\n"},
		{"an error in what is indented", "    x = 1\n    1 +", "SyntaxError: invalid syntax"},
		{"an indent that is wrong", "    x = 1\n  y = 2", "IndentationError: unexpected indent"},
		{"numbers that JSON lacks", "class N:\n    def _repr_json_(self): return {'a': [float('nan'), 1.5]}\n    def __repr__(self): return 'n'\nN()", "<n true>"},
		{"print", "print('a', 1, sep='-', end='!'); print()", "a-1!\n"},
		{"print to another stream", "import sys; print('e', 1, file=sys.stderr)", "e 1\n"},
		{"what print refuses", "print('a', sep=1)", "TypeError: sep must be None or a string, not int"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			result, r := execute(t, s, "python", python(tt.code))
			got := strings.Join(r.all, "")
			for _, e := range r.errs {
				got += e[0] + ": " + e[1]
			}
			if result.Status != server.StatusOK || !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// withLibrary skips unless the machine's Python has a library.
func withLibrary(t *testing.T, name string) *Contexts {
	s := newContexts(t, "python3")
	if _, ok := runHere(t, "python3", "-c", "try: import "+name+"\nexcept ImportError: raise SystemExit(1)"); !ok {
		t.Skipf("this machine's python3 has no %s", name)
	}
	return s
}

// like compares what JSON gives, as far as want says anything.
func like(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for k, v := range want {
			there, has := g[k]
			ok = ok && has && like(there, v)
		}
		return ok
	case []any:
		g, ok := got.([]any)
		ok = ok && len(g) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = like(g[i], want[i])
		}
		return ok
	}
	return reflect.DeepEqual(got, want)
}

func TestCharts(t *testing.T) {
	s := withLibrary(t, "matplotlib")
	t.Setenv("MPLCONFIGDIR", t.TempDir())
	for _, tt := range []struct{ name, code, want string }{
		{
			"line", "plt.plot([1, 2], [3, 4], label='a'); plt.plot([1, 2], [5, float('nan')]); plt.title('T'); plt.xlabel('Time (s)'); plt.ylabel('V [mV]'); plt.show()",
			`{"type": "line", "title": "T", "x_label": "Time (s)", "x_unit": "s", "y_label": "V [mV]", "y_unit": "mV", "x_scale": "linear", "y_scale": "linear",
			"elements": [{"label": "a", "points": [[1, 3], [2, 4]]}, {"label": "Line 1", "points": [[1, 5], [2, null]]}]}`,
		},
		{
			"time", "import datetime\nplt.plot([datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2)], [1, 2])",
			`{"type": "line", "title": null, "x_scale": "datetime", "elements": [{"points": [["2024-01-01T00:00:00", 1], ["2024-01-02T00:00:00", 2]]}]}`,
		},
		{
			"scatter", "plt.scatter([1, 2], [3, 4], label='d'); plt.yscale('log')",
			`{"type": "scatter", "y_scale": "log", "x_label": null, "elements": [{"label": "d", "points": [[1, 3], [2, 4]]}]}`,
		},
		{
			"bar", "plt.bar(['x', 'y'], [1, 2], label='g')",
			`{"type": "bar", "elements": [{"label": "x", "group": "g", "value": 1}, {"label": "y", "group": "g", "value": 2}]}`,
		},
		{
			"bar, lying", "plt.barh(['x', 'y'], [1, 2])",
			`{"type": "bar", "elements": [{"label": "x", "group": "", "value": 1}, {"label": "y", "group": "", "value": 2}]}`,
		},
		{
			"pie", "plt.pie([1, 3], labels=['p', 'q'])",
			`{"type": "pie", "elements": [{"label": "p", "angle": 90, "radius": 1}, {"label": "q", "angle": 270, "radius": 1}]}`,
		},
		{
			"boxes", "plt.boxplot([[1, 2, 3, 4, 5], [1, 1, 1, 1, 9]], patch_artist=True); plt.xticks([1, 2], ['k', 'l'])",
			`{"type": "box_and_whisker", "elements": [{"label": "k", "min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 5, "outliers": []},
			{"label": "l", "outliers": [9]}]}`,
		},
		{
			"several axes", "f, (a, b) = plt.subplots(1, 2); a.plot([1], [2]); b.bar(['x'], [1]); f.suptitle('S')",
			`{"type": "superchart", "title": "S", "elements": [{"type": "line"}, {"type": "bar"}]}`,
		},
		{"unknown", "plt.imshow([[1, 2]])", `{"type": "unknown", "elements": []}`},
		{"a figure as value", "f = plt.figure(); f.add_subplot().plot([1], [1]); f", `{"type": "line"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, r := execute(t, s, "python", python("import matplotlib.pyplot as plt\n"+tt.code))
			var charts []string
			for _, data := range r.results {
				if c, ok := data["e2b/chart"]; ok && strings.HasPrefix(data["image/png"], "iVBOR") {
					charts = append(charts, c)
				}
			}
			if len(charts) != 1 {
				t.Fatalf("%d charts, results %v, errors %v", len(charts), r.all, r.errs)
			}
			var got, want any
			if err := json.Unmarshal([]byte(charts[0]), &got); err != nil {
				t.Fatalf("%s: %v", charts[0], err)
			}
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if !like(got, want) {
				t.Errorf("got %s\nwant %s", charts[0], tt.want)
			}
		})
	}
	_, r := execute(t, s, "python", python("plt.figure(); plt.plot([1]); plt.show(); plt.plot([2]); print('x'); plt.figure(); plt.plot([3]);"))
	if got := strings.Join(r.all, ""); got != "<<Figure size 640x480 with 1 Axes> false>x\n<<Figure size 640x480 with 1 Axes> false><<Figure size 640x480 with 1 Axes> false>" {
		t.Errorf("several figures give %q %v", got, r.errs)
	}
}

func TestTables(t *testing.T) {
	s := withLibrary(t, "pandas")
	_, r := execute(t, s, "python", python(`import pandas as pd
pd.DataFrame({"n": [1, 2], "f": [1.5, float("nan")], "s": ["a", None], "t": [pd.Timestamp("2024-01-02"), pd.NaT]})`))
	if len(r.results) != 1 {
		t.Fatalf("got %v %v", r.all, r.errs)
	}
	var got, want any
	_ = json.Unmarshal([]byte(r.results[0]["e2b/data"]), &got)
	_ = json.Unmarshal([]byte(`{"n": [1, 2], "f": [1.5, null], "s": ["a", null], "t": ["2024-01-02T00:00:00", null]}`), &want)
	if !reflect.DeepEqual(got, want) || !strings.Contains(r.results[0]["text/html"], "<table") || !strings.Contains(r.results[0]["text/plain"], "1.5") {
		t.Errorf("got %v", r.results[0])
	}
}

// What a cell does not use is not loaded.
func TestLoadsLittle(t *testing.T) {
	s := newContexts(t, "python3")
	_, r := execute(t, s, "python", python("import sys\nsorted(set(sys.modules) & {'asyncio', 'matplotlib', 'numpy', 'pandas', 'IPython', 'traceback'})"))
	if got := strings.Join(r.all, ""); got != "<[] true>" {
		t.Errorf("a fresh interpreter has loaded %s", got)
	}
}
