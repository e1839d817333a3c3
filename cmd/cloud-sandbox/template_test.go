//go:build linux && !client

package main

import (
	"reflect"
	"slices"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
)

// code-interpreter-v1 is made of a suite that has what its users expect, unless
// somebody says what it is to be made of.
func TestRecipeOfCodeInterpreter(t *testing.T) {
	r, err := recipeOf(built("code-interpreter-v1", "", "ffmpeg"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Source.String() != "debian:trixie" { // matplotlib 3.10
		t.Errorf("it is made of %s", r.Source)
	}
	for _, p := range []string{"ffmpeg", "python3-matplotlib", "python3-pil"} {
		if !slices.Contains(r.Packages, p) {
			t.Errorf("it lacks %s", p)
		}
	}
	for _, other := range []cli.TemplateBuild{built("code-interpreter-v1", "debian:bookworm"), built("desktop", "debian:bookworm"), built("claude", "debian:bookworm"), built("web", "")} {
		r, err := recipeOf(other)
		if err != nil || len(r.Packages)+len(r.NPM)+len(r.Files) > 0 || r.Source.String() == "debian:trixie" {
			t.Errorf("%+v: %s with %q, %v", other, r.Source, r.Packages, err)
		}
	}
}

// Templates of E2B's are known by name, with whatever tag, and can have more.
func TestRecipesOfE2BsTemplates(t *testing.T) {
	for name, npm := range map[string][]string{
		"claude": {"@anthropic-ai/claude-code"}, "codex:next": {"@openai/codex"}, "desktop": nil, "code-interpreter-v1:1": nil,
	} {
		asked := built(name, "", "ffmpeg")
		asked.Env = map[string]string{"A": "b"}
		r, err := recipeOf(asked)
		if err != nil || !reflect.DeepEqual(r.NPM, npm) || !slices.Contains(r.Packages, "ffmpeg") || r.Env["A"] != "b" {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if agent := len(npm) > 0; agent != (r.Source.String() != "debian:trixie") || agent && r.Defaults.MemoryBytes != 1<<30 {
			t.Errorf("%s: of %s with %+v", name, r.Source, r.Defaults)
		}
	}
	again, err := recipeOf(built("desktop", ""))
	if err != nil || len(again.Files) != 3 || slices.Contains(again.Packages, "ffmpeg") {
		t.Errorf("what one asked for is the next one's: %+v, %v", again, err)
	}
}

// built is what a command line asks for.
func built(name, source string, packages ...string) (t cli.TemplateBuild) {
	t.Template, t.Source, t.Packages = name, source, packages
	return t
}
