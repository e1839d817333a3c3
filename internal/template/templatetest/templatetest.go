// Package templatetest is the contract of sandbox.Templates and sandbox.TemplateImages as a
// test suite.
package templatetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// World is Templates of which the operator has one, "base".
type World struct {
	sandbox.Templates
	Images sandbox.TemplateImages // nil: it has no images, and their cases are skipped
	// Own gives a Tenant a Template with the tag "latest" and returns its only version.
	Own func(tenant sandbox.TenantID, name string) (version string)
	// Limit sets every Tenant's Quota.TemplateBytes.
	Limit func(bytes int64)
}

// world is a World with helpers.
type world struct {
	World
	t *testing.T
}

// Run checks the contract. open is called once per case and registers its own cleanup.
func Run(t *testing.T, open func(t *testing.T) World) {
	for name, check := range map[string]func(*world){
		"the operator's template":   shared,
		"templates of tenants":      own,
		"tags":                      tags,
		"reuse":                     reuse,
		"remove":                    remove,
		"a build":                   build,
		"builds of others":          buildsOfOthers,
		"builds that are refused":   refusedBuilds,
		"the quota":                 quota,
		"the log of a build":        buildLog,
		"a broken upload":           brokenUpload,
		"templates that are absent": absent,
		"images":                    images,
		"images that are refused":   refusedImages,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{open(t), t}
			if w.Images == nil && strings.HasPrefix(name, "images") {
				t.Skip("it has no images")
			}
			check(w)
		})
	}
}

// names returns the Templates of a Tenant as NAME:TAG, and NAME for a version alone.
func (w *world) names(tenant sandbox.TenantID) (names []string) {
	w.t.Helper()
	all, err := w.List(w.t.Context(), tenant)
	codetest.OK(w.t, "List", err)
	for _, t := range all {
		names = append(names, strings.TrimSuffix(t.Name+":"+t.Tag, ":"))
	}
	return names
}

func (w *world) find(tenant sandbox.TenantID, text string) sandbox.Template {
	w.t.Helper()
	found, err := w.Find(w.t.Context(), tenant, text)
	codetest.OK(w.t, "Find", err)
	return found
}

func shared(w *world) {
	t, ctx := w.t, w.t.Context()
	base := w.find("t", "base")
	if base.Name != "base" || base.Tag != "latest" || !base.Shared || base.Version == "" || base.SizeBytes <= 0 || base.StoredBytes <= 0 || base.CreatedAt.IsZero() {
		t.Errorf("Find = %+v", base)
	}
	for _, text := range []string{"base:latest", "base@" + base.Version} {
		if got := w.find("other", text); got.Version != base.Version || !got.Shared {
			t.Errorf("Find(%s) = %+v", text, got)
		}
	}
	same, versions, err := w.Versions(ctx, "t", "base")
	if err != nil || same.Version != base.Version || len(versions) != 1 || versions[0].Version != base.Version || versions[0].Tag != "" {
		t.Errorf("Versions = %+v, %+v, %v", same, versions, err)
	}
	if got := w.names("t"); !slices.Contains(got, "base:latest") {
		t.Errorf("List = %v", got)
	}
}

func own(w *world) {
	version := w.Own("t", "web")
	if got := w.find("t", "web"); got.Version != version || got.Shared || got.Tag != "latest" {
		w.t.Errorf("Find = %+v", got)
	}
	if got := w.names("t"); !slices.Contains(got, "web:latest") || !slices.Contains(got, "base:latest") {
		w.t.Errorf("List = %v", got)
	}
	codetest.Want(w.t, "Find of another's", codetest.ErrOf(w.Find(w.t.Context(), "other", "web")), sandbox.NotFound)
	if got := w.names("other"); slices.Contains(got, "web:latest") {
		w.t.Errorf("List of another = %v", got)
	}
	w.Own("t", "base") // in place of the operator's
	if got := w.find("t", "base"); got.Shared {
		w.t.Errorf("Find = %+v", got)
	}
	if got := w.find("other", "base"); !got.Shared {
		w.t.Errorf("Find of another = %+v", got)
	}
}

func tags(w *world) {
	t, ctx := w.t, w.t.Context()
	version := w.Own("t", "web")
	if got, err := w.Tag(ctx, "t", "web", []string{"v1", "stable"}); err != nil || got.Version != version {
		t.Errorf("Tag = %+v, %v", got, err)
	}
	if got := w.find("t", "web:stable"); got.Version != version || got.Tag != "stable" {
		t.Errorf("Find = %+v", got)
	}
	for _, text := range []string{"none", "base", "web:v2"} {
		codetest.Want(t, "Tag of "+text, codetest.ErrOf(w.Tag(ctx, "t", text, []string{"v1"})), sandbox.NotFound)
	}
	codetest.Want(t, "Tag of another's", codetest.ErrOf(w.Tag(ctx, "other", "web", []string{"v1"})), sandbox.NotFound)
	codetest.Want(t, "a bad tag", codetest.ErrOf(w.Tag(ctx, "t", "web", []string{"a b"})), sandbox.Invalid)
}

func reuse(w *world) {
	t, ctx := w.t, w.t.Context()
	base := w.find("t", "base")
	as := sandbox.Template{Name: "web", Tag: "v1", Version: base.Version, Build: "a", Layer: "b"}
	if got, err := w.Reuse(ctx, "t", "base", as); err != nil || got.Version != base.Version || got.Name != "web" {
		t.Errorf("Reuse = %+v, %v", got, err)
	}
	if got := w.find("t", "web:v1"); got.Version != base.Version || got.Shared || got.Build != "a" || got.Layer != "b" {
		t.Errorf("Find = %+v", got)
	}
	other, reserved := as, as
	other.Version, reserved.Name = strings.Repeat("1", 64), "base"
	codetest.Want(t, "Reuse of another version", codetest.ErrOf(w.Reuse(ctx, "t", "base", other)), sandbox.Conflict)
	codetest.Want(t, "Reuse as a reserved name", codetest.ErrOf(w.Reuse(ctx, "t", "base", reserved)), sandbox.Denied)
	codetest.Want(t, "Reuse of nothing", codetest.ErrOf(w.Reuse(ctx, "t", "none", as)), sandbox.NotFound)
}

func remove(w *world) {
	t, ctx := w.t, w.t.Context()
	version := w.Own("t", "web")
	codetest.OK(t, "Tag", codetest.ErrOf(w.Tag(ctx, "t", "web", []string{"v1"})))
	codetest.Want(t, "Remove of another's", codetest.ErrOf(w.Remove(ctx, "other", "web")), sandbox.NotFound)
	if gone, err := w.Remove(ctx, "t", "web:v1"); err != nil || !slices.Equal(gone.Names, []string{"web:v1"}) || gone.FreedBytes != 0 {
		t.Errorf("Remove of a tag = %+v, %v", gone, err)
	}
	gone, err := w.Remove(ctx, "t", "web")
	slices.Sort(gone.Names)
	if err != nil || !slices.Equal(gone.Names, []string{"web", "web@" + version}) || gone.FreedBytes <= 0 {
		t.Errorf("Remove = %+v, %v", gone, err)
	}
	codetest.Want(t, "Find of what was removed", codetest.ErrOf(w.Find(ctx, "t", "web")), sandbox.NotFound)
	codetest.Want(t, "Remove again", codetest.ErrOf(w.Remove(ctx, "t", "web")), sandbox.NotFound)
	codetest.Want(t, "Remove of the operator's", codetest.ErrOf(w.Remove(ctx, "t", "base")), sandbox.Denied)
	if n, err := w.StoredBytes(ctx, "t"); err != nil || n != 0 {
		t.Errorf("StoredBytes afterwards = %d, %v", n, err)
	}
}

func absent(w *world) {
	ctx, id := w.t.Context(), sandbox.NewBuildID()
	_, _, versions := w.Versions(ctx, "t", "none")
	for what, err := range map[string]error{
		"Find":        codetest.ErrOf(w.Find(ctx, "t", "none")),
		"Find of one": codetest.ErrOf(w.Find(ctx, "t", "base:none")),
		"Versions":    versions,
		"Remove":      codetest.ErrOf(w.Remove(ctx, "t", "none")),
		"BuildByID":   codetest.ErrOf(w.BuildByID(ctx, "t", id)),
		"CancelBuild": codetest.ErrOf(w.CancelBuild(ctx, "t", id)),
		"BuildLog":    w.BuildLog(ctx, "t", id, 0, false, func(sandbox.BuildLine) error { return nil }),
	} {
		codetest.Want(w.t, what, err, sandbox.NotFound)
	}
	codetest.Want(w.t, "a bad name", codetest.ErrOf(w.Find(ctx, "t", "../x")), sandbox.Invalid)
	if all, err := w.Builds(ctx, "t"); err != nil || len(all) != 0 {
		w.t.Errorf("Builds = %+v, %v", all, err)
	}
}

// nonsense is a build that fails, because its archive is none.
func (w *world) nonsense(tenant sandbox.TenantID, name string) sandbox.TemplateBuild {
	w.t.Helper()
	archive := strings.NewReader("not an archive")
	b, err := w.Build(w.t.Context(), tenant, sandbox.TemplateRequest{Template: name, Source: "tar:"}, archive)
	codetest.OK(w.t, "Build", err)
	if archive.Len() != 0 {
		w.t.Errorf("%d bytes of the archive were not read", archive.Len())
	}
	return b
}

// lines follows the log of a build to its end.
func (w *world) lines(b sandbox.TemplateBuild) (all []sandbox.BuildLine) {
	w.t.Helper()
	codetest.OK(w.t, "BuildLog", w.BuildLog(w.t.Context(), b.Tenant, b.ID, 0, true, func(l sandbox.BuildLine) error {
		all = append(all, l)
		return nil
	}))
	return all
}

func build(w *world) {
	t, ctx := w.t, w.t.Context()
	first := w.nonsense("t", "web:v1")
	if first.Tenant != "t" || first.Template != "web:v1" || first.Source != "tar:" || !sandbox.ValidBuildID(first.ID) || time.Since(first.CreatedAt) > time.Minute {
		t.Errorf("Build = %+v", first)
	}
	w.lines(first) // waits for its end
	second := w.nonsense("t", "web:v2")
	done, err := w.BuildByID(ctx, "t", first.ID)
	if err != nil || done.State != sandbox.BuildFailed || done.Failure == nil || done.Failure.Code != sandbox.Invalid || done.EndedAt.IsZero() || done.Version != "" {
		t.Errorf("BuildByID = %+v, %v", done, err)
	}
	all, err := w.Builds(ctx, "t")
	if err != nil || len(all) != 2 || all[0].ID != second.ID || all[1].ID != first.ID {
		t.Errorf("Builds = %+v, %v", all, err)
	}
	codetest.Want(t, "CancelBuild of one that has ended", codetest.ErrOf(w.CancelBuild(ctx, "t", first.ID)), sandbox.Conflict)
	w.lines(second) // until then the template is one that is being built
	codetest.Want(t, "Find of what failed", codetest.ErrOf(w.Find(ctx, "t", "web:v1")), sandbox.NotFound)
}

func buildLog(w *world) {
	t := w.t
	b := w.nonsense("t", "web")
	all := w.lines(b)
	if len(all) < 1 || !strings.HasPrefix(all[len(all)-1].Text, "failed: ") || all[0].At.IsZero() {
		t.Fatalf("the log has %+v", all)
	}
	read := func(from int64) (n int, err error) {
		err = w.BuildLog(t.Context(), "t", b.ID, from, false, func(sandbox.BuildLine) error {
			n++
			return nil
		})
		return n, err
	}
	for i, l := range all {
		if n, err := read(l.Next); err != nil || n != len(all)-i-1 {
			t.Errorf("after %d lines there are %d, %v", i+1, n, err)
		}
	}
	codetest.Want(t, "an offset beyond the end", codetest.ErrOf(read(all[len(all)-1].Next+1)), sandbox.Invalid)
	codetest.Want(t, "a negative offset", codetest.ErrOf(read(-1)), sandbox.Invalid)
	enough := sandbox.Errorf(sandbox.Unsupported, "enough")
	err := w.BuildLog(t.Context(), "t", b.ID, 0, false, func(sandbox.BuildLine) error { return enough })
	codetest.Want(t, "a handler that fails", err, sandbox.Unsupported)
}

func buildsOfOthers(w *world) {
	ctx, b := w.t.Context(), w.nonsense("t", "web")
	w.lines(b)
	for what, err := range map[string]error{
		"BuildByID":   codetest.ErrOf(w.BuildByID(ctx, "other", b.ID)),
		"CancelBuild": codetest.ErrOf(w.CancelBuild(ctx, "other", b.ID)),
		"BuildLog":    w.BuildLog(ctx, "other", b.ID, 0, false, func(sandbox.BuildLine) error { return nil }),
	} {
		codetest.Want(w.t, what, err, sandbox.NotFound)
	}
	if all, err := w.Builds(ctx, "other"); err != nil || len(all) != 0 {
		w.t.Errorf("Builds of another = %+v, %v", all, err)
	}
}

func refusedBuilds(w *world) {
	for what, tt := range map[string]struct {
		name, source string
		want         sandbox.Code
	}{
		"a folder of the server": {"web", "dir:/etc", sandbox.Denied},
		"a file of the server":   {"web", "tar:/etc/x.tar", sandbox.Denied},
		"a reserved name":        {"base", "debian:bookworm", sandbox.Denied},
		"a bad name":             {"../web", "debian:bookworm", sandbox.Invalid},
		"a version":              {"web@" + strings.Repeat("0", 64), "debian:bookworm", sandbox.Invalid},
		"an unknown source":      {"web", "ftp:x", sandbox.Invalid},
		"no archive":             {"web", "tar:", sandbox.Invalid},
	} {
		req := sandbox.TemplateRequest{Template: tt.name, Source: tt.source}
		codetest.Want(w.t, what, codetest.ErrOf(w.Build(w.t.Context(), "t", req, nil)), tt.want)
	}
	if all, err := w.Builds(w.t.Context(), "t"); err != nil || len(all) != 0 {
		w.t.Errorf("Builds = %+v, %v", all, err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, sandbox.Errorf(sandbox.Unavailable, "broken") }

// patience bounds what is waited for, which is long on a busy machine only.
const patience = time.Minute

func brokenUpload(w *world) {
	ctx, req := w.t.Context(), sandbox.TemplateRequest{Template: "web", Source: "tar:"}
	codetest.Want(w.t, "an archive that breaks off", codetest.ErrOf(w.Build(ctx, "t", req, io.MultiReader(strings.NewReader("half"), broken{}))), sandbox.Unavailable)
	// The call ends with the reader's error. Templates notice soon that nothing more comes.
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		all, err := w.Builds(ctx, "t")
		if err == nil && len(all) == 0 {
			return
		}
		if err != nil || time.Since(began) > patience {
			w.t.Fatalf("Builds = %+v, %v", all, err)
		}
	}
}

func quota(w *world) {
	t, ctx := w.t, w.t.Context()
	if n, err := w.StoredBytes(ctx, "t"); err != nil || n != 0 {
		t.Errorf("StoredBytes of none = %d, %v", n, err)
	}
	version := w.Own("t", "web")
	n, err := w.StoredBytes(ctx, "t")
	if err != nil || n <= 0 {
		t.Fatalf("StoredBytes = %d, %v", n, err)
	}
	codetest.OK(t, "Admit without a limit", w.Admit(ctx, "t", ""))
	w.Limit(n)
	codetest.OK(t, "Admit of what it has", w.Admit(ctx, "t", version))
	codetest.Want(t, "Admit of one more", w.Admit(ctx, "t", ""), sandbox.Exhausted)
	codetest.OK(t, "Admit for another", w.Admit(ctx, "other", ""))
	codetest.Want(t, "Build", codetest.ErrOf(w.Build(ctx, "t", sandbox.TemplateRequest{Template: "b", Source: "tar:"}, strings.NewReader("x"))), sandbox.Exhausted)
}

// imageOf returns an image that no Template has, and its version.
func imageOf(text string, size int) (content []byte, version string) {
	content = bytes.Repeat([]byte(text), size/len(text)+1)[:size]
	sum := sha256.Sum256(content)
	return content, hex.EncodeToString(sum[:])
}

// read returns an image, whose size must be as it was said.
func (w *world) read(version string) []byte {
	w.t.Helper()
	image, size, err := w.Images.OpenImage(w.t.Context(), version)
	codetest.OK(w.t, "OpenImage", err)
	content, err := io.ReadAll(image)
	codetest.OK(w.t, "read an image", errors.Join(err, image.Close()))
	if int64(len(content)) != size {
		w.t.Errorf("an image of %d bytes has %d", size, len(content))
	}
	return content
}

func images(w *world) {
	t, ctx := w.t, w.t.Context()
	base := w.find("t", "base").Version
	if sum := sha256.Sum256(w.read(base)); hex.EncodeToString(sum[:]) != base {
		t.Error("the image of base has another hash than its version")
	}
	content, version := imageOf("image ", 3<<20+1)
	_, other := imageOf("other ", 1)
	if got, err := w.Images.MissingImages(ctx, []string{version, base, other}); err != nil || !slices.Equal(got, []string{version, other}) {
		t.Errorf("MissingImages = %q, %v", got, err)
	}
	codetest.Want(t, "OpenImage of none", openErr(w, version), sandbox.NotFound)
	codetest.OK(t, "StoreImage", w.Images.StoreImage(ctx, version, int64(len(content)), bytes.NewReader(content)))
	if got := w.read(version); !bytes.Equal(got, content) {
		t.Errorf("the image comes back as %d other bytes", len(got))
	}
	if got, err := w.Images.MissingImages(ctx, []string{version, base}); err != nil || len(got) != 0 {
		t.Errorf("MissingImages afterwards = %q, %v", got, err)
	}
	codetest.OK(t, "StoreImage of one that is here", w.Images.StoreImage(ctx, version, int64(len(content)), bytes.NewReader(content)))
	if n, err := w.StoredBytes(ctx, "t"); err != nil || n != 0 {
		t.Errorf("StoredBytes = %d, %v", n, err)
	}
}

func openErr(w *world, version string) error {
	image, _, err := w.Images.OpenImage(w.t.Context(), version)
	if err == nil {
		image.Close()
	}
	return err
}

func refusedImages(w *world) {
	t, ctx := w.t, w.t.Context()
	content, version := imageOf("image ", 100_000)
	size := int64(len(content))
	reader := func() io.Reader { return bytes.NewReader(content) }
	for what, tt := range map[string]struct {
		version string
		size    int64
		image   io.Reader
		want    sandbox.Code
	}{
		"another hash":        {strings.Repeat("0", 64), size, reader(), sandbox.Invalid},
		"too few bytes":       {version, size + 1, reader(), sandbox.Invalid},
		"too many bytes":      {version, size - 1, reader(), sandbox.Invalid},
		"no bytes":            {version, 0, reader(), sandbox.Invalid},
		"more than any disk":  {version, 1 << 60, reader(), sandbox.Invalid},
		"a bad version":       {"../x", size, reader(), sandbox.Invalid},
		"one that breaks off": {version, size, io.MultiReader(bytes.NewReader(content[:5000]), broken{}), sandbox.Unavailable},
	} {
		codetest.Want(t, what, w.Images.StoreImage(ctx, tt.version, tt.size, tt.image), tt.want)
	}
	codetest.Want(t, "OpenImage of a bad version", openErr(w, "../x"), sandbox.Invalid)
	codetest.Want(t, "MissingImages of a bad version", codetest.ErrOf(w.Images.MissingImages(ctx, []string{"../x"})), sandbox.Invalid)
	codetest.Want(t, "OpenImage after all of them", openErr(w, version), sandbox.NotFound)
}
