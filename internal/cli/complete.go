package cli

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Bounds of what a shell waits for and shows after Tab.
const (
	completeTime = 3 * time.Second
	completeMost = 200
)

// sandboxes completes the ID or name of a sandbox.
func (a *app) sandboxes(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := a.connect(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	list, err := c.List(ctx, nil, nil, completeMost)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var found []cobra.Completion
	for _, s := range list {
		for _, word := range []string{s.Name, s.ID} {
			if word != "" && strings.HasPrefix(word, begun) {
				found = append(found, cobra.CompletionWithDesc(row(word), row(strings.TrimSpace(s.Name+" "+s.State))))
				break // one of both is enough
			}
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// firstSandbox completes a sandbox as the first argument and nothing after it.
func (a *app) firstSandbox(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.sandboxes(cmd, args, begun)
}

// manySandboxes completes sandboxes that are not there yet.
func (a *app) manySandboxes(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	found, directive := a.sandboxes(cmd, args, begun)
	var left []cobra.Completion
	for _, f := range found {
		word, _, _ := strings.Cut(f, "\t")
		if !slices.Contains(args, word) {
			left = append(left, f)
		}
	}
	return left, directive
}

// sandboxAndProcess completes a sandbox and then processes in it.
func (a *app) sandboxAndProcess(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.sandboxes(cmd, args, begun)
	}
	c, err := a.connect(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	list, err := c.Processes(ctx, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var found []cobra.Completion
	for _, p := range list {
		if word := cmp.Or(p.Name, p.ID); strings.HasPrefix(word, begun) && !slices.Contains(args, word) {
			found = append(found, cobra.CompletionWithDesc(row(word), row(p.State+" "+p.Command)))
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// remotePath completes SANDBOX: and then paths in it.
func (a *app) remotePath(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const half = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	p, err := parsePlace(begun)
	if err != nil || p.local() {
		found, directive := a.sandboxes(cmd, args, begun)
		for i, f := range found {
			word, about, _ := strings.Cut(f, "\t")
			found[i] = cobra.CompletionWithDesc(word+":", about)
		}
		if directive == cobra.ShellCompDirectiveError {
			return nil, directive
		}
		return found, half
	}
	c, err := a.connect(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	_, given, _ := strings.Cut(begun, ":")
	folder, _ := path.Split(given)
	if folder == "" {
		p.path = "."
	} else {
		p.path = folder
	}
	entries, _, err := c.ListFiles(ctx, p.sandbox, p.path)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var found []cobra.Completion
	for _, e := range entries {
		if strings.HasPrefix(folder+e.Name, given) && clean(e.Name) == e.Name && !strings.ContainsAny(e.Name, "\n\t") {
			word := p.sandbox + ":" + folder + e.Name
			if e.Type == "directory" {
				word += "/"
			}
			found = append(found, word)
		}
	}
	return found[:min(len(found), completeMost)], half
}

// eitherPath is remotePath, or a file here.
func (a *app) eitherPath(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.ContainsAny(begun, "/.") && !strings.Contains(begun, ":") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	found, directive := a.remotePath(cmd, args, begun)
	if len(found) == 0 && !strings.Contains(begun, ":") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return found, directive
}
