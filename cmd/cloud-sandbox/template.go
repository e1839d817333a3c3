package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// base is the Template that every installation has.
const base = "base"

func templateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "template", Short: "Build and find the root filesystems that sandboxes start from"}
	cmd.AddCommand(templateBuildCommand(), templatePathCommand())
	return cmd
}

// templates opens the Template store of the data folder.
func templates(cmd *cobra.Command) (*template.Store, error) {
	data, err := config.DataFolder(given(cmd), os.Getenv)
	if err != nil {
		return nil, err
	}
	return template.Open(launch.Layout{Root: data}.Templates())
}

func templateBuildCommand() *cobra.Command {
	var source string
	var force bool
	cmd := &cobra.Command{
		Use:   "build [NAME]",
		Short: "Build a template, if it is not built already",
		Long: `Build a template, if it is not built already.

The template "base" is made of the image SANDBOX_IMAGE (python:3.11-slim) where
its registry answers, and of Debian packages where none does. Needs root.`,
		Example: `  sudo cloud-sandbox template build base
  sudo cloud-sandbox template build base --source debian:bookworm --force`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := base
			if len(args) > 0 {
				name = args[0]
			}
			if source == "" {
				image, err := config.SandboxImage(os.Getenv)
				if err != nil {
					return err
				}
				source = template.Base(image).String()
			}
			from, err := template.ParseSource(source)
			if err != nil {
				return err
			}
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			out := cmd.ErrOrStderr()
			builder := &template.Builder{Store: store, Force: force}
			began := time.Now()
			image, err := builder.Build(cmd.Context(), name, from, printProgress(out, began))
			if err != nil {
				return err
			}
			if image.Cached {
				fmt.Fprintf(out, "template %s is there: %s, %d MiB\n", name, image.Digest[:12], image.Size>>20)
				return nil
			}
			fmt.Fprintf(out, "template %s built in %v: %s, %d MiB, from %s\n", name, time.Since(began).Round(time.Second), image.Digest[:12], image.Size>>20, image.Source)
			return nil
		},
	}
	cmd.Flags().StringVar(&source, "source", "", "what it is made of: oci:REF, debian:SUITE or base:REF (default base:$SANDBOX_IMAGE)")
	cmd.Flags().BoolVar(&force, "force", false, "build it although it is there")
	return cmd
}

// printProgress shows one line that changes on a terminal, and elsewhere a line
// a stage and every few seconds.
func printProgress(w io.Writer, began time.Time) func(template.Progress) {
	const every = 5 * time.Second
	terminal := telemetry.IsTerminal(w)
	var stage string
	var shown time.Time
	return func(p template.Progress) {
		line := fmt.Sprintf("template: %4.0fs  %s", time.Since(began).Seconds(), p)
		switch {
		case terminal && p.Stage == stage:
			fmt.Fprintf(w, "\r\x1b[K%s", strings.TrimRight(line, "\n"))
		case terminal && stage != "":
			fmt.Fprintf(w, "\n%s", line)
		case terminal:
			fmt.Fprint(w, line)
		case p.Stage != stage || time.Since(shown) >= every:
			fmt.Fprintln(w, line)
		default:
			return
		}
		stage, shown = p.Stage, time.Now()
	}
}

func templatePathCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "path NAME",
		Short:   "Print the path of a template's root filesystem image",
		Example: "  cloud-sandbox template path base",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			digest, err := store.Resolve(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			path, err := store.Path(digest)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		},
	}
}
