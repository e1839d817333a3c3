package steps

import (
	"slices"
	"testing"
)

// A state has the name of another only if all that led to it is the same.
func TestLayers(t *testing.T) {
	steps := []Step{{Type: "RUN", Args: []string{"a"}}, {Type: "COPY", Args: []string{"x", "y"}, Files: "1"}}
	names := layers("image", steps)
	if len(names) != 3 || !slices.Equal(names, layers("image", steps)) {
		t.Fatalf("%v", names)
	}
	for name, other := range map[string][]string{
		"another image":   layers("other", steps),
		"another command": layers("image", []Step{{Type: "RUN", Args: []string{"b"}}, steps[1]}),
		"other words":     layers("image", []Step{{Type: "RUN", Args: []string{"a", ""}}, steps[1]}),
		"other files":     layers("image", []Step{steps[0], {Type: "COPY", Args: []string{"x", "y"}, Files: "2"}}),
		"another order":   layers("image", []Step{steps[1], steps[0]}),
	} {
		if other[2] == names[2] {
			t.Errorf("%s: the same name", name)
		}
	}
	if other := layers("image", append(steps[:1:1], Step{Type: "RUN", Args: []string{"b"}})); other[1] != names[1] {
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

// What cannot be a step is told with its number.
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
	b := &build{}
	for range maxLines + 10 {
		b.print(Info, "1", "x")
	}
	b.print(Error, "1", "the end")
	if _, all := b.view(); len(all) != maxLines+2 || all[len(all)-1].Text != "the end" {
		t.Errorf("%d lines", len(all))
	}
}
