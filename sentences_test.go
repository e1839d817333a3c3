package sandbox_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sentences finds the texts of shipped code, by their positions: those of errors, help and
// descriptions, which are strings of two words and more, and comments. Tests, suites of
// ports and benches are left out. Queries and scripts are no sentences.
func sentences(t *testing.T) (texts, comments map[string]string) {
	t.Helper()
	texts, comments = map[string]string{}, map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path == "." || strings.HasPrefix(path, "cmd") || path == "api" || path == "api/v1" || strings.HasPrefix(path, "internal") && !noText.MatchString(path) {
				return nil
			}
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.BasicLit:
				if text, ok := literal(n); ok && strings.Contains(strings.TrimSpace(text), " ") && !notProse.MatchString(text) {
					texts[files.Position(n.Pos()).String()] = text
				}
			}
			return true
		})
		for _, group := range file.Comments {
			comments[files.Position(group.Pos()).String()] = strings.Join(strings.Fields(group.Text()), " ")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts, comments
}

var (
	noText   = regexp.MustCompile(`(^|/)(bench|testdata|\w+test)(/|$)`)
	notProse = regexp.MustCompile(`(?s)\b(SELECT|WHERE|INSERT|UPDATE|DELETE|PRAGMA)\b|^#!|\bset -e\b|\$\(|&& `)
)

// doubts are marks of a sentence that has to be read twice, and the remedy for each. The
// linter of the documentation, tests/docs/plain_words.py, looks for the same ones.
var doubts = []struct {
	mark   *regexp.Regexp
	remedy string
}{
	{regexp.MustCompile(`(?i)\bwhat\b`), "name the thing"},
	{regexp.MustCompile(`(?i)\b(of|to|by|for|from|with|than|and|or|as|is|are) whom?\b|^who\b`), "name the person or program"},
	{regexp.MustCompile(`(?i)\b(whoever|whatever|no one)\b|\b(no|some|any|every)body\b`), "name the person or program"},
	{regexp.MustCompile(`(?i)\b(that|those) of\b|\bthose (that|which|who|with|for|from)\b|\bthe ones? (that|which|who|of|for)\b`), "repeat the noun"},
	{regexp.MustCompile(`(?i)\b(is|are|was|were|be) (not )?there\b|\bthere (is|are) (no|none|nothing)\b`), "say exists, runs or is available; or 'no such'"},
	{regexp.MustCompile(`(?i)\btell(s|ing)? (of|apart)\b|\btold\b`), "say report or notify"},
	{regexp.MustCompile(`(?i)\b(go|goes|going|went|gone) on\b|\bruns? on$|\bruns? on[.,;]`), "say continue or keep running"},
	{regexp.MustCompile(`(?i)\bunder way\b|\blets? go of\b|\banew\b|\blooks? after\b|\bgive up on\b`), "say in progress, free, again or manage"},
}

// asking are the words before a "what" that begins an indirect question, which is plain:
// "the log says what failed". So is "what to do".
var asking = regexp.MustCompile(`(?i)\b(says?|shows?|knows?|decides?|sees?|who did) what\b|\bwhat to\b`)

// quoted is code, which means itself.
var quoted = regexp.MustCompile("`[^`]*`")

// A sentence that a user or a newcomer reads names its subject, by the word of the field.
func TestSentences(t *testing.T) {
	texts, comments := sentences(t)
	if len(texts) < 2500 || len(comments) < 8000 {
		t.Fatalf("only %d texts and %d comments were found", len(texts), len(comments))
	}
	plain(t, texts)
	plain(t, comments)
}

func plain(t *testing.T, texts map[string]string) {
	t.Helper()
	for at, text := range texts {
		text = asking.ReplaceAllString(quoted.ReplaceAllString(text, ""), "")
		for _, doubt := range doubts {
			if mark := doubt.mark.FindString(text); mark != "" {
				t.Errorf("%s: %q in %.120q: %s", at, mark, text, doubt.remedy)
			}
		}
	}
}
