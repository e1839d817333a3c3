package cli

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// Bounds of one completion: its timeout and the number of its suggestions.
const (
	completeTime = 3 * time.Second
	completeMost = 200
)

// suggestion is a word to complete to, and its description.
type suggestion struct{ word, about string }

// suggest completes to the words of list that begin with begun and are not given yet.
func (a *app) suggest(cmd *cobra.Command, given []string, begun string, list func(context.Context, *client.Client) ([]suggestion, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := a.connect(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	all, err := list(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var found []cobra.Completion
	for _, s := range all {
		if s.word != "" && strings.HasPrefix(s.word, begun) && !slices.Contains(given, s.word) {
			found = append(found, cobra.CompletionWithDesc(row(s.word), row(strings.TrimSpace(s.about))))
		}
	}
	return found[:min(len(found), completeMost)], cobra.ShellCompDirectiveNoFileComp
}

// sandboxes completes the ID or name of a sandbox.
func (a *app) sandboxes(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.List(ctx, nil, nil, completeMost)
		for _, s := range list {
			word := s.ID
			if s.Name != "" && strings.HasPrefix(s.Name, begun) { // the name or the ID is enough
				word = s.Name
			}
			all = append(all, suggestion{word, s.Name + " " + string(s.State)})
		}
		return all, err
	})
}

// firstSandbox completes a sandbox as the first argument and nothing after it.
func (a *app) firstSandbox(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.sandboxes(cmd, args, begun)
}

// sandboxAndProcess completes a sandbox and then processes in it.
func (a *app) sandboxAndProcess(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) == 0 {
		return a.sandboxes(cmd, given, begun)
	}
	return a.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Processes(ctx, given[0])
		for _, p := range list {
			all = append(all, suggestion{cmp.Or(p.Name, p.ID), p.State + " " + p.Command})
		}
		return all, err
	})
}

// snapshots completes the ID or name of a snapshot.
func (a *app) snapshots(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Snapshots(ctx, completeMost)
		for _, s := range list {
			word := s.ID
			if s.Name != "" && strings.HasPrefix(s.Name, begun) && !slices.ContainsFunc(all, func(n suggestion) bool { return n.word == s.Name }) {
				word = s.Name // stands for the newest with it
			}
			all = append(all, suggestion{word, s.Name + " of " + s.SandboxID})
		}
		return all, err
	})
}

// snapshotIDs completes the ID of a snapshot, for commands that accept no name.
func (a *app) snapshotIDs(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Snapshots(ctx, completeMost)
		for _, s := range list {
			all = append(all, suggestion{s.ID, s.Name + " of " + s.SandboxID})
		}
		return all, err
	})
}

// firstSnapshotID completes the ID of a snapshot as the first argument and nothing
// after it.
func (a *app) firstSnapshotID(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.snapshotIDs(cmd, given, begun)
}

// sandboxAndSnapshot completes a sandbox and then a snapshot in its history.
func (a *app) sandboxAndSnapshot(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch len(given) {
	case 0:
		return a.sandboxes(cmd, given, begun)
	case 1:
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.History(ctx, given[0])
		for _, s := range list {
			word := s.ID
			if s.Name != "" && strings.HasPrefix(s.Name, begun) {
				word = s.Name
			}
			all = append(all, suggestion{word, s.Name + " " + holds(s)})
		}
		return all, err
	})
}

// secrets completes the name of a secret.
func (a *app) secrets(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Secrets(ctx)
		for _, s := range list {
			all = append(all, suggestion{s.Name, s.Description})
		}
		return all, err
	})
}

// firstSecret completes a secret as the first argument and nothing after it.
func (a *app) firstSecret(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.secrets(cmd, given, begun)
}

// secretUse completes NAME@ of a flag.
func (a *app) secretUse(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return begins(a.secrets(cmd, nil, begun))("@")
}

// templates completes the templates that a sandbox can start from.
func (a *app) templates(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.suggest(cmd, nil, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Templates(ctx)
		for _, t := range list {
			all = append(all, suggestion{t.Template, t.Source})
		}
		return all, err
	})
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
	list, err := c.ListFiles(ctx, p.sandbox, p.path)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var found []cobra.Completion
	for _, e := range list.Entries {
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

// eitherPath completes a remote path or a local file.
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

// begins returns a function that appends end to each of the completions found,
// without a space after it.
func begins(found []cobra.Completion, directive cobra.ShellCompDirective) func(end string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return func(end string) ([]cobra.Completion, cobra.ShellCompDirective) {
		for i, f := range found {
			word, about, _ := strings.Cut(f, "\t")
			found[i] = cobra.CompletionWithDesc(word+end, about)
		}
		return found, directive | cobra.ShellCompDirectiveNoSpace
	}
}
