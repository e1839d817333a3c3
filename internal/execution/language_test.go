package execution

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestLanguageNamed(t *testing.T) {
	for name, want := range map[string]string{
		"python": "python", "py": "python", "python3": "python",
		"javascript": "javascript", "js": "javascript", "node": "javascript", "typescript": "typescript", "ts": "typescript",
		"bash": "bash", "sh": "bash", "c++": "cpp", "R": "r", "r": "r", "golang": "go",
	} {
		if l, err := languageNamed(name); err != nil || l.name != want {
			t.Errorf("%s = %q, %v", name, l.name, err)
		}
	}
	for _, name := range []string{"", "cobol", "Python", strings.Repeat("x", 1000)} {
		_, err := languageNamed(name)
		if !errors.Is(err, sandbox.Invalid) || !strings.Contains(err.Error(), "python, javascript, typescript, bash, go, ruby, java, r, c, cpp, rust") || len(err.Error()) > 200 {
			t.Errorf("%.20q: %v", name, err)
		}
	}
}

// The interpreters of this machine run what args makes, short and long alike.
func TestArgsRun(t *testing.T) {
	long := strings.Repeat("é", 300_000) // two bytes each, 600 kB
	for _, tt := range []struct {
		language, code, want string
	}{
		{"bash", `printf '%s %s' "$#" hi`, "0 hi"},
		{"bash", `x='` + long + `'; printf '%s %s' "$#" "$(printf %s "$x" | wc -c)"`, "0 600000"},
		{"bash", `-x 2>/dev/null; printf minus`, "minus"},
	} {
		l, err := languageNamed(tt.language)
		if err != nil {
			t.Fatal(err)
		}
		args := l.args(tt.code)
		if _, err := exec.LookPath(args[0]); err != nil {
			t.Logf("no %s on this machine: not tried", args[0])
			continue
		}
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil || string(out) != tt.want {
			t.Errorf("%s %.40q = %.200q, %v, want %q", tt.language, tt.code, out, err, tt.want)
		}
	}
}

func TestSplit(t *testing.T) {
	for _, s := range []string{"", "abc", strings.Repeat("é", 50), strings.Repeat("日本", 33), strings.Repeat("\xff", 50)} {
		pieces := split(s, 7)
		if strings.Join(pieces, "") != s {
			t.Errorf("split(%q) loses text: %q", s, pieces)
		}
		for _, p := range pieces {
			if len(p) > 7 || utf8.ValidString(s) && !utf8.ValidString(p) {
				t.Errorf("piece %q of %q", p, s)
			}
		}
	}
	if slices.Contains(split(strings.Repeat("\xff", 50), 7), "") {
		t.Error("an empty piece")
	}
}
