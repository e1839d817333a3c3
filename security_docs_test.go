package sandbox_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each test that the table of attacks names is there.
func TestAttacksHaveTheirTests(t *testing.T) {
	const page = "docs/security-tests.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)
	err = filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && strings.HasPrefix(e.Name(), ".") && path != ".":
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, found := range declared.FindAllSubmatch(source, -1) {
			there[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w*)`").FindAllSubmatch(text, -1)
	if len(named) < 50 {
		t.Errorf("%s names %d tests only", page, len(named))
	}
	for _, name := range named {
		if !there[string(name[1])] {
			t.Errorf("%s names %s, which is no test", page, name[1])
		}
	}
}
