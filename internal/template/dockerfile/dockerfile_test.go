package dockerfile

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A plan has the instructions of a Dockerfile in order, with variables replaced.
func TestPlan(t *testing.T) {
	sh := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	for name, tt := range map[string]struct {
		text string
		args map[string]string
		from string
		want Plan
	}{
		"nothing but FROM": {"FROM base\n", nil, "base", Plan{}},
		"arguments before FROM": {
			"ARG V=3\nARG IMAGE=python:${V}-slim\nFROM --platform=linux/" + runtime.GOARCH + " ${IMAGE} AS all\nARG V\nRUN echo $V\n",
			map[string]string{"V": "3.12"},
			"python:3.12-slim",
			Plan{Steps: []Step{{Kind: Run, Line: 5, Text: "RUN echo $V", Argv: sh("echo $V"), Args: map[string]string{"V": "3.12"}}}},
		},
		"an argument is no environment": {
			"FROM base\nARG A=1 B\nENV A=2 C=${A}${B:-none}\nRUN env\n", nil, "base",
			Plan{Steps: []Step{
				{Kind: Env, Line: 3, Text: "ENV A=2 C=${A}${B:-none}", Pairs: []string{"A", "2", "C", "1none"}},
				{Kind: Run, Line: 4, Text: "RUN env", Argv: sh("env"), Args: map[string]string{}},
			}},
		},
		"the environment of the image": {
			"FROM base\nENV PATH=/opt/bin:$PATH Q=\"a b\" R='$PATH' S=\\$x\nWORKDIR $Q/x\n", nil, "base",
			Plan{Steps: []Step{
				{Kind: Env, Line: 2, Text: `ENV PATH=/opt/bin:$PATH Q="a b" R='$PATH' S=\$x`, Pairs: []string{"PATH", "/opt/bin:/bin", "Q", "a b", "R", "$PATH", "S", "$x"}},
				{Kind: Workdir, Line: 3, Text: "WORKDIR $Q/x", Value: "a b/x"},
			}},
		},
		"forms of RUN": {
			"FROM base\nRUN [\"a\", \"b c\"]\nSHELL [\"/bin/bash\", \"-ec\"]\nRUN a \\\n  # a comment\n  b\nRUN <<-EOF\n\tx\n\ty\nEOF\nRUN cat <<A\n1\nA\n", nil, "base",
			Plan{Steps: []Step{
				{Kind: Run, Line: 2, Text: `RUN ["a", "b c"]`, Argv: []string{"a", "b c"}, Args: map[string]string{}},
				{Kind: Run, Line: 4, Text: "RUN a b", Argv: []string{"/bin/bash", "-ec", "a   b"}, Args: map[string]string{}},
				{Kind: Run, Line: 7, Text: "RUN <<-EOF", Argv: []string{"/bin/bash", "-ec", "x\ny\n"}, Args: map[string]string{}},
				{Kind: Run, Line: 11, Text: "RUN cat <<A", Argv: []string{"/bin/bash", "-ec", "cat <<A\n1\nA"}, Args: map[string]string{}},
			}},
		},
		"copies": {
			"FROM base\nENV D=/srv/\nCOPY --chown=app:app --chmod=0755 a b* $D\nADD ./x /y\nCOPY <<E /z\nhi $D\nE\n", nil, "base",
			Plan{Steps: []Step{
				{Kind: Env, Line: 2, Text: "ENV D=/srv/", Pairs: []string{"D", "/srv/"}},
				{Kind: Copy, Line: 3, Text: "COPY --chown=app:app --chmod=0755 a b* $D", Sources: []string{"a", "b*"}, Dest: "/srv/", Owner: "app:app", Mode: "0755"},
				{Kind: Copy, Line: 4, Text: "ADD ./x /y", Sources: []string{"./x"}, Dest: "/y", Owner: "root:root"},
				{Kind: Copy, Line: 5, Text: "COPY <<E /z", Inline: []Inline{{"E", "hi /srv/\n"}}, Dest: "/z", Owner: "root:root"},
			}},
		},
		"users, starts and what has no effect": {
			"FROM base\nUSER app\nEXPOSE 80\nLABEL a=b\nHEALTHCHECK NONE\nCMD [\"-v\"]\nENTRYPOINT [\"serve\"]\n", nil, "base",
			Plan{
				Steps: []Step{{Kind: User, Line: 2, Text: "USER app", Value: "app"}}, Start: []string{"serve", "-v"},
				Notes: []string{"EXPOSE has no effect: every port of a sandbox can be reached without it", "LABEL has no effect: templates have no labels"},
			},
		},
		"CMD of a shell":        {"FROM base\nCMD serve | log\n", nil, "base", Plan{Start: sh("serve | log")}},
		"ENTRYPOINT of a shell": {"FROM base\nENTRYPOINT serve\nCMD [\"-v\"]\n", nil, "base", Plan{Start: sh("serve")}},
		"the last CMD":          {"FROM base\nCMD one\nCMD [\"two\"]\n", nil, "base", Plan{Start: []string{"two"}}},
		"another escape":        {"# escape=`\nFROM base\nRUN a `\n b\n", nil, "base", Plan{Steps: []Step{{Kind: Run, Line: 3, Text: "RUN a b", Argv: sh("a  b"), Args: map[string]string{}}}}},
	} {
		f, err := Parse(tt.text, tt.args)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := f.Plan(map[string]string{"PATH": "/bin"})
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" || f.From != tt.from {
			t.Errorf("%s: from %q, %v\n%s", name, f.From, err, diff)
		}
		if f.Starts() != (len(got.Start) > 0) {
			t.Errorf("%s: starts %v", name, f.Starts())
		}
	}
}

// An unsupported instruction is refused with its line and a remedy.
func TestParseRefuses(t *testing.T) {
	doubled := "FROM base\nENV A=aaaaaaaa\n" + strings.Repeat("ENV A=$A$A$A$A$A$A$A$A\n", 10)
	for name, tt := range map[string]struct {
		text string
		code sandbox.Code
		says string
	}{
		"empty":                  {"", sandbox.Invalid, "no instructions"},
		"no FROM":                {"RUN a\n", sandbox.Invalid, "line 1: no build stage"},
		"only arguments":         {"ARG A=1\n", sandbox.Invalid, "has no FROM"},
		"not an instruction":     {"FROM base\n\nRUNN a\n", sandbox.Invalid, "line 3: unknown instruction: RUNN"},
		"no text":                {"FROM base\x00", sandbox.Invalid, "zero byte"},
		"too large":              {"FROM base\n#" + strings.Repeat("x", MaxBytes), sandbox.TooLarge, "512 KiB"},
		"stages":                 {"FROM a AS x\nRUN b\nFROM c\n", sandbox.Unsupported, "line 3: a second FROM"},
		"scratch":                {"FROM scratch\n", sandbox.Unsupported, "line 1: FROM scratch"},
		"an empty FROM":          {"ARG A\nFROM $A\n", sandbox.Invalid, `line 2: FROM names nothing`},
		"another platform":       {"FROM --platform=windows/amd64 a\n", sandbox.Unsupported, "line 1: the platform"},
		"mounts":                 {"FROM a\nRUN --mount=type=cache,target=/x b\n", sandbox.Unsupported, "line 2: RUN --mount"},
		"a script of its own":    {"FROM a\nRUN <<E\n#!/bin/x\nE\n", sandbox.Unsupported, "line 2: a RUN whose text begins with #!"},
		"from a stage":           {"FROM a\nCOPY --from=b c d\n", sandbox.Unsupported, "line 2: COPY --from"},
		"with parents":           {"FROM a\nCOPY --parents c d\n", sandbox.Unsupported, "line 2: COPY --parents"},
		"an address":             {"FROM a\nADD https://example.com/x /x\n", sandbox.Unsupported, "line 2: ADD of an address: fetch it by RUN"},
		"a repository":           {"FROM a\nADD git@example.com:x.git /x\n", sandbox.Unsupported, "line 2: ADD of an address"},
		"an archive":             {"FROM a\nADD x.tar.gz /x\n", sandbox.Unsupported, "line 2: ADD of an archive: COPY it"},
		"a checksum":             {"FROM a\nADD --checksum=sha256:24454f830cdb571e2c4ad15481119c43b3cafd48dd869a9b2945d1036d1dc68d https://a /x\n", sandbox.Unsupported, "line 2: flags of ADD"},
		"a health check":         {"FROM a\n\nHEALTHCHECK CMD b\n", sandbox.Unsupported, "line 3: HEALTHCHECK: remove it, and name a ready command"},
		"on build":               {"FROM a\nONBUILD RUN b\n", sandbox.Unsupported, "line 2: ONBUILD"},
		"a user with a group":    {"FROM a\nUSER b:c\n", sandbox.Unsupported, "line 2: USER b:c"},
		"a number":               {"FROM a\nUSER 1000\n", sandbox.Unsupported, "line 2: USER 1000"},
		"several to a file":      {"FROM a\nCOPY b c d\n", sandbox.Invalid, "line 2: COPY of several files"},
		"out of the context":     {"FROM a\nRUN b\nCOPY ../c d\n", sandbox.Invalid, `line 3: COPY "../c" leads out of the build context`},
		"further out":            {"FROM a\nCOPY x/../../c d\n", sandbox.Invalid, "leads out"},
		"a bad owner":            {"FROM a\nCOPY --chown=a:b:c d e\n", sandbox.Invalid, "line 2: --chown"},
		"a bad mode":             {"FROM a\nCOPY --chmod=u+x d e\n", sandbox.Invalid, "line 2: --chmod"},
		"a bad variable":         {"FROM a\nENV A=\"${B:?must be set}\"\n", sandbox.Invalid, "must be set"},
		"variables without end":  {doubled, sandbox.Invalid, "128 KiB"},
		"a text without its end": {"FROM a\nRUN <<E\nb\n", sandbox.Invalid, "unterminated heredoc"},
		"too many files":         {"FROM a\nCOPY " + strings.Repeat("b ", 1001) + "c/\n", sandbox.TooLarge, "line 2: all COPYs"},
		"many instructions":      {"FROM a\n" + strings.Repeat("RUN b\n", 1001), sandbox.TooLarge, "1000 instructions"},
		"many variables":         {"FROM a\nENV" + strings.Repeat(" \\\n A=1", 10) + manyVariables() + "\n", sandbox.TooLarge, "all variables"},
		"large variables":        {"FROM a\nARG A=" + strings.Repeat("x", 60_000) + "\n" + strings.Repeat("ARG A\nENV B=$A\n", 20), sandbox.TooLarge, "all variables"},
		"a long path":            {"FROM a\nCOPY " + strings.Repeat("b", 5000) + " c/\n", sandbox.Invalid, "line 2: COPY"},
		"an unknown flag":        {"FROM a\nCOPY --nope b c\n", sandbox.Invalid, "line 2: unknown flag: --nope"},
	} {
		_, err := Parse(tt.text, nil)
		if !errors.Is(err, tt.code) || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: %v, want %s with %q", name, err, tt.code, tt.says)
		}
	}
	if _, err := Parse("FROM a\nARG B\n", map[string]string{"C": "1"}); !errors.Is(err, sandbox.Invalid) || !strings.Contains(err.Error(), `"C" is not declared`) {
		t.Errorf("an argument that nothing asks for: %v", err)
	}
}

func manyVariables() (text string) {
	for i := range 1001 {
		text += fmt.Sprintf(" A%d=1", i)
	}
	return text
}

func TestCopies(t *testing.T) {
	for text, want := range map[string]bool{"FROM a\nCOPY <<E /x\nE\n": false, "FROM a\nCOPY x y\n": true, "FROM a\nADD x y\n": true, "FROM a\nRUN x\n": false} {
		if f, err := Parse(text, nil); err != nil || f.Copies() != want {
			t.Errorf("%q: %v, %v", text, f, err)
		}
	}
}

func names(f *Files) (all []string) {
	for _, p := range f.all {
		all = append(all, p.name)
	}
	return slices.Clip(all)
}
