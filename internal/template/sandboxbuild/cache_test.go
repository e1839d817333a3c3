package sandboxbuild

import (
	"slices"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// layers are the names of what steps leave.
func layers(from sandbox.Template, steps []Step) []string {
	return (&Recipe{Steps: steps}).layers(from)
}

// A state has the name of another only if all that led to it is the same.
func TestLayers(t *testing.T) {
	steps := []Step{{Type: "RUN", Args: []string{"a"}}, {Type: "COPY", Args: []string{"x", "y"}, Files: "1"}}
	image := sandbox.Template{Version: "image"}
	names := layers(image, steps)
	if len(names) != 3 || !slices.Equal(names, layers(image, steps)) {
		t.Fatalf("%v", names)
	}
	for name, other := range map[string][]string{
		"another image":   layers(sandbox.Template{Version: "other"}, steps),
		"another user":    layers(sandbox.Template{Version: "image", Defaults: sandbox.TemplateDefaults{User: "root"}}, steps),
		"another folder":  layers(sandbox.Template{Version: "image", Defaults: sandbox.TemplateDefaults{Cwd: "/"}}, steps),
		"another command": layers(image, []Step{{Type: "RUN", Args: []string{"b"}}, steps[1]}),
		"other words":     layers(image, []Step{{Type: "RUN", Args: []string{"a", ""}}, steps[1]}),
		"other files":     layers(image, []Step{steps[0], {Type: "COPY", Args: []string{"x", "y"}, Files: "2"}}),
		"another order":   layers(image, []Step{steps[1], steps[0]}),
	} {
		if other[2] == names[2] {
			t.Errorf("%s: the same name", name)
		}
	}
	if other := layers(image, append(steps[:1:1], Step{Type: "RUN", Args: []string{"b"}})); other[1] != names[1] {
		t.Error("what comes later changes the name of what was before")
	}
	for _, tt := range []struct {
		recipe Recipe
		want   int
	}{
		{Recipe{Steps: steps}, 2},
		{Recipe{Steps: steps, Force: true}, 0},
		{Recipe{Steps: []Step{steps[0], {Type: "RUN", Args: []string{"b"}, Force: true}, steps[1]}}, 1},
	} {
		if got := tt.recipe.reusable(); got != tt.want {
			t.Errorf("%+v: %d steps, want %d", tt.recipe, got, tt.want)
		}
	}
}

// An earlier result is used for a build only if nothing differs. It counts as ready only
// if it came up with the same commands.
func TestResults(t *testing.T) {
	steps := []Step{{Type: "RUN", Args: []string{"a"}}, {Type: "RUN", Args: []string{"b"}}}
	origin := sandbox.Template{Name: "base", Tag: "latest", Version: "image", Shared: true}
	after := layers(origin, steps)
	starts := "cd '/home/user' && exec /bin/bash -l -c 'serve'"
	place := sandbox.TemplateDefaults{User: "user", Cwd: "/home/user"}
	larger := place
	larger.CPUs = 4
	plain := sandbox.Template{Name: "other", Tag: "latest", Version: "plain", Layer: after[2], Defaults: place}
	half := sandbox.Template{Name: "other", Tag: "half", Version: "half", Layer: after[1], Defaults: place}
	serving := sandbox.Template{Name: "other", Tag: "serving", Version: "serving", Layer: after[2], Start: starts, Defaults: place}
	tried, untagged, sized := serving, serving, serving
	tried.Tag, untagged.Tag, sized.Defaults = stagingPrefix+"1", "", larger
	alone := sandbox.Template{Name: "other", Tag: "latest", Version: "image", Layer: after[0], Start: starts, Defaults: place}
	for name, tt := range map[string]struct {
		recipe Recipe
		known  []sandbox.Template
		from   string // version that is begun with
		skip   int
		done   bool
		cameUp bool
	}{
		"nothing":                {Recipe{Steps: steps}, nil, "image", 0, false, false},
		"another's":              {Recipe{Steps: steps}, []sandbox.Template{half, serving, plain}, "plain", 2, true, true},
		"half of it":             {Recipe{Steps: steps}, []sandbox.Template{serving, half}, "half", 1, false, true},
		"forced":                 {Recipe{Steps: steps, Force: true}, []sandbox.Template{half, plain}, "image", 0, false, false},
		"a step is forced":       {Recipe{Steps: []Step{steps[0], {Type: "RUN", Args: []string{"b"}, Force: true}}}, []sandbox.Template{plain, half}, "half", 1, false, true},
		"what starts":            {Recipe{Steps: steps, Start: "serve"}, []sandbox.Template{plain, serving}, "serving", 2, true, true},
		"what starts another":    {Recipe{Steps: steps, Start: "else"}, []sandbox.Template{serving, plain}, "plain", 2, false, true},
		"what waits for another": {Recipe{Steps: steps, Start: "serve", Ready: "true"}, []sandbox.Template{serving, half}, "half", 1, false, true},
		"what is being tried":    {Recipe{Steps: steps, Start: "serve"}, []sandbox.Template{tried}, "serving", 2, true, false},
		"what may have failed":   {Recipe{Steps: steps, Start: "serve"}, []sandbox.Template{untagged}, "serving", 2, true, false},
		"another size":           {Recipe{Steps: steps, Start: "serve"}, []sandbox.Template{sized}, "serving", 2, true, false},
		"no step":                {Recipe{}, nil, "image", 0, true, false},
		"no step, forced":        {Recipe{Force: true}, []sandbox.Template{alone}, "image", 0, false, false},
		"no step, starts":        {Recipe{Start: "serve"}, nil, "image", 0, false, false},
		"no step, as before":     {Recipe{Start: "serve"}, []sandbox.Template{alone}, "image", 0, true, true},
	} {
		r := &run{b: &build{record: Build{Draft: Draft{Name: "mine", Tags: []string{"latest"}}}}, recipe: tt.recipe, origin: origin, base: origin}
		r.user, r.cwd = new(Recipe).placeOf(origin)
		r.layers = layers(origin, tt.recipe.Steps)
		for n := r.recipe.reusable(); n >= r.recipe.least(); n-- {
			if r.goOnFrom(n, tt.known) {
				break
			}
		}
		if r.base.Version != tt.from || r.skip != tt.skip || r.done() != tt.done || r.cameUp() != tt.cameUp {
			t.Errorf("%s: from %s after %d steps, done %t, came up %t", name, r.base.Version, r.skip, r.done(), r.cameUp())
		}
	}
}

// An error about an invalid step has its number.
func TestRecipeCheck(t *testing.T) {
	hash := "abababababababababababababababababababababababababababababababab"
	for name, tt := range map[string]struct {
		step Step
		ok   bool
	}{
		"run":               {Step{Type: "RUN", Args: []string{"true", ""}}, true},
		"copy":              {Step{Type: "COPY", Args: []string{"a/../b", "/x/", "root:user", "0755"}, Files: hash}, true},
		"copy of nothing":   {Step{Type: "COPY", Args: []string{"a", "/x"}}, false},
		"copy from outside": {Step{Type: "COPY", Args: []string{"../a", "/x"}, Files: hash}, false},
		"copy from the top": {Step{Type: "COPY", Args: []string{"/a", "/x"}, Files: hash}, false},
		"copy for nobody":   {Step{Type: "COPY", Args: []string{"a", "/x", "-R"}, Files: hash}, false},
		"copy, odd mode":    {Step{Type: "COPY", Args: []string{"a", "/x", "", "rwx"}, Files: hash}, false},
		"copy to nowhere":   {Step{Type: "COPY", Args: []string{"a", ""}, Files: hash}, false},
		"user":              {Step{Type: "USER", Args: []string{"dev", "true"}}, true},
		"no user":           {Step{Type: "USER", Args: []string{"$(id)"}}, false},
		"lower case":        {Step{Type: "run", Args: []string{"true"}}, false},
	} {
		recipe := Recipe{Steps: []Step{tt.step}}
		if err := recipe.check(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Lines come whole, however they are cut, and without end.
func TestStream(t *testing.T) {
	var lines []string
	s := &stream{print: func(_ Level, text string) { lines = append(lines, text) }}
	for _, piece := range []string{"on", "e\r\ntwo\n\n", "  \nthr", "ee"} {
		s.take([]byte(piece))
	}
	s.flush()
	if !slices.Equal(lines, []string{"one", "two", "three"}) || !slices.Equal(s.last, lines) {
		t.Errorf("%q, %q", lines, s.last)
	}
	b := newBuild(Build{})
	for range maxLines + 10 {
		b.print(Info, "1", "x")
	}
	b.print(Error, "1", "the end")
	if _, all := b.view(); len(all) != maxLines+2 || all[len(all)-1].Text != "the end" {
		t.Errorf("%d lines", len(all))
	}
}
