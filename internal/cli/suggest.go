package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// noCommand is the error for an unknown command of the group cmd, with the commands
// of similar names.
func noCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	_, group, below := strings.Cut(cmd.CommandPath(), " ")
	full := func(name string) string {
		if below {
			name = group + " " + name
		}
		return fmt.Sprintf("%q", name)
	}
	return usagef("no command %s%s", full(name), didYouMean(cmd, closest(name, names), full))
}

// nearFlag returns the end of a sentence about err: a similar flag of cmd, and where
// to find its help.
func nearFlag(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return didYouMean(cmd, nil, nil)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return didYouMean(cmd, closest(unknown.GetSpecifiedName(), names), func(name string) string { return "--" + name })
}

// didYouMean returns the end of a sentence: the likely meant names and where to find
// the help of cmd.
func didYouMean(cmd *cobra.Command, names []string, show func(string) string) string {
	help := "see `" + cmd.CommandPath() + " --help`"
	if len(names) == 0 {
		return "; " + help
	}
	shown := make([]string, len(names))
	for i, name := range names {
		shown[i] = show(name)
	}
	return "; did you mean " + strings.Join(shown, " or ") + "? S" + help[1:]
}

// closest returns the members of names that word most likely means, sorted; none
// where all are far from it.
func closest(word string, names []string) (found []string) {
	const editCost, letters = 2, 3 // one edit for each three letters, rounded up
	best := (len(word) + letters - 1) / letters * editCost
	for _, name := range names {
		switch d := typingDistance(word, name); {
		case d < best:
			best, found = d, []string{name}
		case d == best:
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// typingDistance is the cost to turn a into b: 2 for a byte that was left out, added
// or swapped with its neighbour, and 3 for a wrong one, since those are rarer.
func typingDistance(a, b string) int {
	const missed, wrong = 2, 3
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0:
				d[i][j] = missed * j
			case j == 0:
				d[i][j] = missed * i
			default:
				same := d[i-1][j-1]
				if a[i-1] != b[j-1] {
					same += wrong
				}
				d[i][j] = min(same, d[i-1][j]+missed, d[i][j-1]+missed)
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					d[i][j] = min(d[i][j], d[i-2][j-2]+missed)
				}
			}
		}
	}
	return d[len(a)][len(b)]
}
