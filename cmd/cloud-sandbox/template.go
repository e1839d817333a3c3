//go:build linux && !client

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// base is the Template that every installation has.
const base = "base"

func templateCommand() *cobra.Command {
	cmd := cli.TemplateCommand(os.Getenv, func(cmd *cobra.Command, use func(cli.Templates) error) error {
		store, err := templates(cmd)
		if err != nil {
			return err
		}
		return use(localTemplates{store})
	})
	cmd.AddCommand(templatePathCommand(), templateExportCommand(), templateImportCommand())
	return cmd
}

// templates opens the Template store of the data folder.
func templates(cmd *cobra.Command) (*template.Store, error) {
	data, err := config.DataFolder(setFlags(cmd), os.Getenv)
	if err != nil {
		return nil, err
	}
	return serve.OpenTemplates(launch.Layout{Root: data})
}

// localTemplates are the operator's Templates in a data folder.
type localTemplates struct{ store *template.Store }

// Templates implements cli.Templates.
func (l localTemplates) Templates(context.Context) ([]v1.Template, error) {
	listed, err := l.store.List("")
	return viewsOf(listed), err
}

// TemplateVersions implements cli.Templates.
func (l localTemplates) TemplateVersions(ctx context.Context, name string) ([]v1.Template, error) {
	meant, err := l.store.Find(ctx, "", name)
	if err != nil {
		return nil, err
	}
	found, err := l.store.VersionsOf(meant)
	return viewsOf(found), err
}

func viewsOf(listed []template.Listed) []v1.Template {
	views := make([]v1.Template, len(listed))
	for i, l := range listed {
		views[i] = v1.Template{
			Template: l.Ref.String(), Name: l.Name, Tag: l.Tag, Version: l.Image.Digest, Shared: !l.Private, Source: l.Source,
			Packages: append([]string{}, l.Packages...), Env: l.Env, Start: l.Start, Ready: l.Ready, SizeBytes: l.Size, StoredBytes: l.Stored, CreatedAt: l.CreatedAt,
		}
	}
	return views
}

// RemoveTemplate implements cli.Templates.
func (l localTemplates) RemoveTemplate(_ context.Context, name string) (v1.RemovedTemplates, error) {
	if os.Geteuid() != 0 {
		return v1.RemovedTemplates{}, errors.New("removing a template from the data folder needs root: run it as root, or remove your own template on a server with --url")
	}
	gone, freed, err := l.store.Remove("", name)
	removed := v1.RemovedTemplates{Removed: make([]string, len(gone)), FreedBytes: freed}
	for i, r := range gone {
		removed.Removed[i] = r.String()
	}
	return removed, err
}

// BuildTemplate implements cli.Templates.
func (l localTemplates) BuildTemplate(ctx context.Context, t cli.TemplateBuild, tell func(stage, line string)) (made cli.BuiltTemplate, err error) {
	if t.DockerfileAt != "" {
		return made, errors.New("a Dockerfile is built in a sandbox, which the data folder alone cannot start: start the server with `cloud-sandbox serve`, and build through it with --url and --api-key, or CLOUD_SANDBOX_URL and CLOUD_SANDBOX_API_KEY")
	}
	if t.Template == "" {
		t.Template = base
	}
	ref, err := template.ParseRef("", t.Template)
	if err != nil {
		return made, err
	}
	recipe, err := recipeOf(t)
	if err != nil {
		return made, err
	}
	if len(t.Put) > 0 {
		if recipe.Upload, err = packed(ctx, t.Put); err != nil {
			return made, err
		}
		defer recipe.Upload.Close()
		if recipe.UploadHash, err = template.CheckUpload(ctx, recipe.Upload); err != nil {
			return made, err
		}
	}
	if _, err := config.ExportProxy(os.Getenv); err != nil {
		return made, err
	}
	inexact, err := config.InexactImages(os.Getenv)
	if err != nil {
		return made, err
	}
	builder := &template.Builder{Store: l.store, Force: t.Force, NPMRegistry: config.NPMRegistry(os.Getenv), Inexact: inexact}
	image, err := builder.Make(ctx, ref, recipe, nil, func(p template.Progress) { tell(p.Stage, p.String()) })
	if err != nil {
		return made, err
	}
	return cli.BuiltTemplate{Template: ref.String(), Version: image.Digest, Source: image.Source, SizeBytes: image.Size, Cached: image.Cached}, nil
}

// packed writes an archive of files to an unnamed file.
func packed(ctx context.Context, files []cli.PutFile) (*os.File, error) {
	f, err := os.CreateTemp("", "cloud-sandbox-files-*")
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.Remove(f.Name()), cli.PackFiles(ctx, f, files))
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func recipeOf(t cli.TemplateBuild) (template.Recipe, error) {
	r := template.Recipe{Packages: t.Packages, Env: t.Env, Start: t.Start, Ready: t.Ready, Bare: t.Bare, Private: t.Private}
	source := t.Source
	var k known
	if source == "" {
		name, _, _ := strings.Cut(t.Template, ":")
		k = recipes[name]
		k.into(&r)
	}
	switch {
	case k.suite != "":
		source = template.Debian(k.suite).String()
	case source == "":
		image, err := config.SandboxImage(os.Getenv)
		if err != nil {
			return r, err
		}
		source = template.Base(image).String()
	}
	var err error
	if r.Source, err = template.ParseSource(localSource(source)); err != nil {
		return r, err
	}
	return r, r.Check()
}

// localSource makes the path of a tar: or dir: source absolute.
func localSource(source string) string {
	kind, path, ok := strings.Cut(source, ":")
	if !ok || kind != "tar" && kind != "dir" {
		return source
	}
	if abs, err := filepath.Abs(path); err == nil && path != "" {
		return kind + ":" + abs
	}
	return source
}

func templatePathCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "path NAME[:TAG|@VERSION]",
		Short:   "Print the path of a template's root filesystem image, on the server",
		Example: "  cloud-sandbox template path base",
		Args:    cli.Args(1, 1, "one TEMPLATE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.OnFolder(cmd, os.Getenv); err != nil {
				return err
			}
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			digest, err := store.Resolve(cmd.Context(), "", args[0])
			if err != nil {
				return err
			}
			path, err := store.Path(cmd.Context(), digest)
			if err != nil {
				return err
			}
			return cli.Print(cmd, map[string]string{"template": args[0], "version": digest, "path": path}, path)
		},
	}
}

func templateExportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export NAME[:TAG|@VERSION] FILE",
		Short: "Write a template to a file, to be imported elsewhere, on the server",
		Long: `Write a template of the data folder to FILE ("-": standard output), compressed,
for "cloud-sandbox template import" on another machine with the same processor.`,
		Example: "  sudo cloud-sandbox template export base base.template",
		Args:    cli.Args(2, 2, "a TEMPLATE and a FILE"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := cli.OnFolder(cmd, os.Getenv); err != nil {
				return err
			}
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			if args[1] == "-" {
				_, err := store.Export(cmd.Context(), args[0], cmd.OutOrStdout())
				return err
			}
			f, err := os.CreateTemp(filepath.Dir(args[1]), ".template-*")
			if err != nil {
				return err
			}
			defer os.Remove(f.Name()) // if the rename did not happen
			made, err := store.Export(cmd.Context(), args[0], f)
			if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
				return err
			}
			if err := os.Rename(f.Name(), args[1]); err != nil {
				return err
			}
			return cli.Print(cmd, map[string]string{"template": made.Ref.String(), "version": made.Image.Digest, "file": args[1]}, args[1])
		},
	}
	return cmd
}

func templateImportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE",
		Short: "Import a template from a file that \"template export\" wrote, on the server",
		Long: `Import a template from a file that "cloud-sandbox template export" wrote ("-":
standard input) into the data folder, as root. The template that had the name
before stays as a version.`,
		Example: "  sudo cloud-sandbox template import base.template",
		Args:    cli.Args(1, 1, "one FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.OnFolder(cmd, os.Getenv); err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return errors.New("the templates of the data folder belong to root: run it as root")
			}
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			made, err := store.Import(cmd.Context(), in)
			if err != nil {
				return err
			}
			return cli.Print(cmd, map[string]string{"template": made.Ref.String(), "version": made.Image.Digest}, made.Ref.String()+"@"+made.Image.Digest)
		},
	}
}
