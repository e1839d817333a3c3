package main

import (
	"slices"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
)

// code-interpreter-v1 is made of a suite that has what its users expect, unless
// somebody says what it is to be made of.
func TestRecipeOfCodeInterpreter(t *testing.T) {
	r, err := recipeOf(built(codeInterpreter, "", "ffmpeg"))
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
	for _, other := range []cli.TemplateBuild{built(codeInterpreter, "debian:bookworm"), built("web", "")} {
		r, err := recipeOf(other)
		if err != nil || len(r.Packages) > 0 || r.Source.String() == "debian:trixie" {
			t.Errorf("%+v: %s with %q, %v", other, r.Source, r.Packages, err)
		}
	}
}

// built is what a command line asks for.
func built(name, source string, packages ...string) (t cli.TemplateBuild) {
	t.Template, t.Source, t.Packages = name, source, packages
	return t
}
