package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/decompress"
)

// A Recipe describes the content of a Template. Only Source is required.
type Recipe struct {
	Source   Source   `json:"source"`
	Packages []string `json:"packages,omitempty"` // of the distribution, in addition to its defaults
	// NPM are packages of the npm registry, NAME or NAME@VERSION, installed for all
	// users. The build installs the newest matching version and runs its install
	// scripts.
	NPM   []string          `json:"npm,omitempty"`
	Files []File            `json:"files,omitempty"`
	Env   map[string]string `json:"env,omitempty"`   // of Processes; overrides an image's
	Start string            `json:"start,omitempty"` // shell command that runs in every Sandbox from its Bind on
	Ready string            `json:"ready,omitempty"` // shell command that succeeds once Start has come up
	// Bare leaves an image unmodified: the tools of base are not added, and none of its
	// programs runs during the build. Archives and folders are always left unmodified.
	Bare    bool `json:"bare,omitempty"`
	Private bool `json:"private,omitempty"` // hide it from other Tenants
	// Whole means that the source is the complete content of a Sandbox: the build keeps
	// all files outside the run-time folders.
	Whole    bool                     `json:"whole,omitempty"`
	Defaults sandbox.TemplateDefaults `json:"defaults,omitzero"`
	// Base is the version that the archive changes, see fillChanges; empty: the archive
	// is complete.
	Base string `json:"base,omitempty"`
	// Upload is an archive of more files, added after Files, and UploadHash its hash from
	// CheckUpload; nil: none.
	Upload     *os.File `json:"-"`
	UploadHash string   `json:"upload_hash,omitempty"`

	Build string `json:"-"` // see sandbox.Template
	Layer string `json:"-"`
}

// A File is a file to add to a Template.
type File struct {
	Path    string      `json:"path"` // absolute, or below /
	Content []byte      `json:"content"`
	Mode    fs.FileMode `json:"mode,omitempty"` // zero: 0644
	User    bool        `json:"user,omitempty"` // "user" owns it, not root
}

// Bounds of a Recipe.
const (
	maxRecipePackages = 500
	maxRecipeFiles    = 1000
	maxRecipeBytes    = 8 << 20 // of all Files, which are held in memory
	maxCommand        = 64 << 10
	maxFilePath       = 4096
)

var (
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{1,127}$`)
	npmPattern     = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]{0,99}/)?[a-z0-9][a-z0-9._-]{0,99}(@[a-z0-9][a-z0-9.+-]{0,49})?$`)
)

// Check returns Invalid or TooLarge, with a remedy, for a Recipe that cannot be built.
func (r Recipe) Check() error {
	if err := r.Source.check(); err != nil {
		return err
	}
	for _, p := range r.Packages {
		if !packagePattern.MatchString(p) {
			return sandbox.Errorf(sandbox.Invalid, "%.80q is not the name of a package", p)
		}
	}
	if len(r.Packages) > maxRecipePackages {
		return sandbox.Errorf(sandbox.TooLarge, "a template may ask for at most %d packages", maxRecipePackages)
	}
	if len(r.Packages) > 0 && !r.installs() {
		return sandbox.Errorf(sandbox.Unsupported, "packages cannot be installed into %s: build the template without packages, then install them with RUN in a Dockerfile that starts FROM it", r.Source.shown())
	}
	for _, p := range r.NPM {
		if !npmPattern.MatchString(p) {
			return sandbox.Errorf(sandbox.Invalid, "%.80q is not the name of a package of npm", p)
		}
	}
	if len(r.NPM) > 0 && !r.installs() {
		return sandbox.Errorf(sandbox.Unsupported, "npm packages cannot be installed into %s: use debian:SUITE, or an image without bare", r.Source.shown())
	}
	if err := r.checkFiles(); err != nil {
		return err
	}
	if err := sandbox.CheckEnv(r.Env); err != nil {
		return err
	}
	if err := r.Defaults.Check(); err != nil {
		return err
	}
	for what, command := range map[string]string{"start": r.Start, "ready": r.Ready} {
		if len(command) > maxCommand || strings.ContainsRune(command, 0) {
			return sandbox.Errorf(sandbox.Invalid, "the %s command may have at most %d bytes and no zero byte", what, maxCommand)
		}
	}
	if r.Ready != "" && r.Start == "" {
		return sandbox.Errorf(sandbox.Invalid, "a ready command needs a start command: name one")
	}
	return nil
}

// installs reports whether programs of the Template run during the build.
func (r Recipe) installs() bool {
	switch r.Source.kind {
	case kindDebian, kindBase:
		return true
	case kindOCI:
		return !r.Bare
	}
	return false
}

func (r Recipe) checkFiles() error {
	size := 0
	for _, f := range r.Files {
		name, ok := cleanName(f.Path)
		if !ok || len(f.Path) > maxFilePath {
			return sandbox.Errorf(sandbox.Invalid, "%.80q is not the path of a file in a template", f.Path)
		}
		if err := checkPlace(name); err != nil {
			return err
		}
		if f.Mode&^fs.ModePerm != 0 {
			return sandbox.Errorf(sandbox.Invalid, "the mode of /%.80s may only say who may read, write and execute", name)
		}
		size += len(f.Content)
	}
	if len(r.Files) > maxRecipeFiles || size > maxRecipeBytes {
		return sandbox.Errorf(sandbox.TooLarge, "the description of a template may hold at most %d files with %d bytes in total: send the rest as an archive in the form's part `files`", maxRecipeFiles, maxRecipeBytes)
	}
	return nil
}

// checkPlace rejects paths that a Template cannot provide.
func checkPlace(name string) error {
	for _, dir := range []string{"proc", "sys", "dev", "run", "tmp", ".cloud-sandbox"} {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			return sandbox.Errorf(sandbox.Invalid, "/%.80[2]s cannot be in a template: /%[1]s is created in each sandbox", dir, name)
		}
	}
	return nil
}

// hash returns a hash of the Recipe's additions to its Source; empty when it adds
// nothing.
func (r Recipe) hash() (string, error) {
	plain := r
	plain.Source, plain.Private = Source{}, false
	body, err := json.Marshal(plain)
	if err != nil || string(body) == `{"source":""}` {
		return "", err
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:]), nil
}

// MarshalText encodes a Source as text in JSON.
func (s Source) MarshalText() ([]byte, error) {
	if s == (Source{}) {
		return nil, nil
	}
	return []byte(s.String()), nil
}

// UnmarshalText parses the form of MarshalText.
func (s *Source) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSource(string(text))
	return err
}

// addFiles adds the Recipe's files and environment to the tree.
func (b *build) addFiles(recipe Recipe) error {
	if b.env == nil {
		b.env = map[string]string{}
	}
	maps.Copy(b.env, recipe.Env)
	for _, f := range recipe.Files {
		name, _ := cleanName(f.Path)
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		if err := b.tree.write(name, mode, string(f.Content)); err != nil {
			return err
		}
		if f.User {
			if err := b.tree.own(name, mode, userID); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeRecipe writes the part of the Recipe that the Guest needs into the image.
func (b *build) writeRecipe() error {
	body, err := json.Marshal(guest.Template{Env: b.env, Start: b.plan.recipe.Start, Ready: b.plan.recipe.Ready})
	if err != nil {
		return err
	}
	return b.tree.write(strings.TrimPrefix(guest.TemplateFile, "/"), 0o644, string(body)+"\n")
}

// fillTar unpacks an archive, which may be compressed.
func (b *build) fillTar(ctx context.Context) error {
	f, err := os.Open(b.plan.asked.ref)
	if err != nil {
		return unreadable(b.plan.asked, err)
	}
	defer f.Close()
	b.source = b.plan.asked.String()
	return b.fillFrom(ctx, f)
}

// fillFrom unpacks an archive from r: a root filesystem, or an image of `docker save`.
func (b *build) fillFrom(ctx context.Context, r io.Reader) error {
	if file, ok := r.(*os.File); ok && !b.plan.recipe.Whole {
		image, err := savedImage(ctx, file)
		if err != nil {
			return err
		}
		if image != nil {
			return b.unpackSaved(ctx, image)
		}
	}
	b.say("unpack", "unpacking the archive", 0, 0)
	plain, err := decompress.Reader(r)
	if err != nil {
		return err
	}
	err = untar(b.tree, ctxReader{ctx, plain}, b.Guard.treeBytes(), func(n int) {
		if n%500 == 0 {
			b.say("unpack", "unpacking files", n, 0)
		}
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	return b.dateByFiles()
}

// fillFolder copies a folder. Links stay links.
func (b *build) fillFolder(ctx context.Context) error {
	b.source = b.plan.asked.String()
	r, w := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		err := tarFolder(b.plan.asked.ref, w)
		w.CloseWithError(err)
		copied <- err
	}()
	err := b.fillFrom(ctx, r)
	r.CloseWithError(errors.New("the copy was cancelled"))
	if copyErr := <-copied; copyErr != nil {
		return unreadable(b.plan.asked, copyErr)
	}
	return err
}

func unreadable(s Source, err error) error {
	return sandbox.Errorf(sandbox.Invalid, "%s cannot be read: %v", s, err)
}

// dateByFiles dates the build's own files like the newest file of the source, so that
// equal trees stay equal.
func (b *build) dateByFiles() error {
	now := time.Now()
	newest := time.Time{}
	err := fs.WalkDir(b.tree.FS(), ".", func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		if t := info.ModTime(); t.After(newest) && t.Before(now) {
			newest = t
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("date the tree: %w", err)
	}
	if newest.Year() < 2000 {
		newest = fallbackDate
	}
	b.newest = newest.UTC().Truncate(time.Second)
	return nil
}

// checkBare checks that an unmodified tree has a shell.
func (b *build) checkBare() error {
	if !b.tree.has("bin/sh", "usr/bin/sh") {
		return sandbox.Errorf(sandbox.Invalid, "the template has no /bin/sh: is the root filesystem in another folder of the source?")
	}
	return nil
}

// ctxReader fails once its context has ended.
type ctxReader struct {
	ctx context.Context
	io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// shellOf returns the login shell of "user": bash, if present.
func (b *build) shellOf() string {
	for _, shell := range []string{"/bin/bash", "/usr/bin/bash"} {
		if b.tree.has(strings.TrimPrefix(path.Clean(shell), "/")) {
			return shell
		}
	}
	return "/bin/sh"
}
