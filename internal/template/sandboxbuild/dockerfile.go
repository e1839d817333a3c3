package sandboxbuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/decompress"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/dockerfile"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploadlimit"
)

// maxSent bounds the files that are sent with a build, in bytes.
const maxSent = 2 << 30

var sentRoom = uploadlimit.Bounds{Subject: "the files of a build", Most: maxSent, Leave: 4 << 30}

// scratch returns an unlinked file.
func (s *Service) scratch() (*os.File, error) {
	f, err := os.CreateTemp(s.cfg.Scratch, ".build-*")
	if err != nil {
		return nil, sentRoom.Explain(fmt.Errorf("receive %s: %w", sentRoom.Subject, err))
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("receive %s: %w", sentRoom.Subject, err)
	}
	return f, nil
}

// buildContext is the build context of one Dockerfile; nil: none.
type buildContext struct {
	*dockerfile.Context
	file    *os.File // unlinked: it ends with this process
	release func()
}

// close must be called once.
func (c *buildContext) close() {
	if c != nil {
		c.file.Close()
		c.release()
	}
}

// takeContext stores an uploaded build context: an archive, perhaps compressed. A Tenant
// may have at most maxGoing at a time.
func (s *Service) takeContext(ctx context.Context, tenant sandbox.TenantID, archive io.Reader) (*buildContext, error) {
	release, err := s.mayTake(tenant)
	if err != nil {
		return nil, err
	}
	c := &buildContext{release: release}
	if c.file, err = s.scratch(); err != nil {
		release()
		return nil, err
	}
	plain, err := decompress.Reader(ended{ctx, archive})
	if err == nil {
		c.Context, err = dockerfile.ReadContext(plain, &roomy{File: c.file}, maxSent)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// upload is an archive of files uploaded with a build.
type upload struct {
	file    *os.File // unlinked
	size    int64
	hash    string
	release func()
}

// takeUpload stores uploaded files until their build needs them.
func (s *Service) takeUpload(ctx context.Context, tenant sandbox.TenantID, archive io.Reader) (*upload, error) {
	release, err := s.mayTake(tenant)
	if err != nil {
		return nil, err
	}
	u := &upload{release: release}
	if u.file, err = s.scratch(); err != nil {
		release()
		return nil, err
	}
	sum := sha256.New()
	if err = sentRoom.Receive(ctx, u.file, io.TeeReader(archive, sum)); err == nil {
		u.size, err = u.file.Seek(0, io.SeekCurrent)
	}
	if err != nil {
		u.close()
		return nil, err
	}
	u.hash = hex.EncodeToString(sum.Sum(nil))
	return u, nil
}

// close must be called once.
func (u *upload) close() {
	if u != nil {
		u.file.Close()
		u.release()
	}
}

// close releases the uploads of r.
func (r *Recipe) close() {
	r.Context.close()
	r.Upload.close()
}

// mayTake counts an upload of a Tenant until release is called.
func (s *Service) mayTake(tenant sandbox.TenantID) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taking[tenant] >= maxGoing {
		return nil, tooMany()
	}
	s.taking[tenant]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taking[tenant]--; s.taking[tenant] == 0 {
			delete(s.taking, tenant)
		}
	}, nil
}

// ended fails once its context has ended.
type ended struct {
	ctx context.Context
	io.Reader
}

func (e ended) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.Reader.Read(p)
}

// roomy is a file that keeps free space on its disk.
type roomy struct {
	*os.File
	unseen int // bytes written since the last check of the disk
}

func (r *roomy) Write(p []byte) (int, error) {
	if r.unseen += len(p); r.unseen >= uploadlimit.LookEvery {
		r.unseen = 0
		if err := sentRoom.Check(r.File); err != nil {
			return 0, err
		}
	}
	n, err := r.File.Write(p)
	return n, sentRoom.Explain(err)
}

// plan converts a Dockerfile to steps, once its base is known, and finds the files of its
// COPYs.
func (r *run) plan(ctx context.Context) error {
	plan, err := r.recipe.Dockerfile.Plan(r.origin.Env)
	if err != nil {
		return err
	}
	for _, note := range plan.Notes {
		r.b.print(Warn, r.at, r.prefix+" "+note)
	}
	_, cwd := r.recipe.placeOf(r.origin)
	r.recipe.Steps = nil
	for _, s := range plan.Steps {
		step, err := r.stepOf(ctx, s)
		if err != nil {
			return err
		}
		if step.Type == "WORKDIR" {
			if cwd = path.Join(cwd, s.Value); path.IsAbs(s.Value) {
				cwd = path.Clean(s.Value)
			}
		}
		r.recipe.Steps = append(r.recipe.Steps, step)
	}
	if r.recipe.Start == "" && len(plan.Start) > 0 {
		words := make([]string, len(plan.Start))
		for i, w := range plan.Start {
			words[i] = quoted(w)
		}
		r.recipe.Start = "cd " + quoted(cwd) + " && exec " + strings.Join(words, " ")
	}
	return r.recipe.check()
}

// stepOf converts a Step of a Dockerfile.
func (r *run) stepOf(ctx context.Context, s dockerfile.Step) (Step, error) {
	step := Step{Type: string(s.Kind), Line: s.Line, Text: s.Text, Argv: s.Argv, Env: s.Args}
	switch s.Kind {
	case dockerfile.Run:
		step.Args = []string{"command"} // Argv is executed
	case dockerfile.Env:
		step.Args = s.Pairs
	case dockerfile.User, dockerfile.Workdir:
		step.Args = []string{s.Value}
	case dockerfile.Copy:
		name, dest := ".", s.Dest
		files, err := r.recipe.Context.find(ctx, s)
		if err != nil {
			return step, err
		}
		if files.Single {
			name = files.Name
		} else if !strings.HasSuffix(dest, "/") {
			dest += "/"
		}
		step.Args, step.Files = []string{name, dest, s.Owner, s.Mode}, files.Hash
		r.copies[files.Hash] = files
	}
	return step, nil
}

// find is dockerfile.Context.Find; it also works without a Context if nothing is copied
// from one.
func (c *buildContext) find(ctx context.Context, s dockerfile.Step) (*dockerfile.Files, error) {
	if c == nil && len(s.Sources) > 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "Dockerfile line %d: COPY needs a build context: send one with the Dockerfile", s.Line)
	}
	if c == nil {
		return new(dockerfile.Context).Find(ctx, s)
	}
	return c.Find(ctx, s)
}

// pack returns the archive of a COPY's files. Close must be called.
func pack(files *dockerfile.Files) (archive io.ReadCloser, bytes int64, err error) {
	if bytes, err = files.WriteTo(io.Discard); err != nil {
		return nil, 0, err
	}
	if bytes > maxSent {
		return nil, 0, sandbox.Errorf(sandbox.TooLarge, "the files of one COPY may have at most %d GiB", maxSent>>30)
	}
	read, write := io.Pipe()
	p := &packing{PipeReader: read, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_, err := files.WriteTo(write)
		write.CloseWithError(err)
	}()
	return p, bytes, nil
}

// packing is an archive while it is packed.
type packing struct {
	*io.PipeReader
	done chan struct{} // closed: nothing is packed any more
}

func (p *packing) Close() error {
	err := p.PipeReader.Close()
	<-p.done
	return err
}

// locate adds the Step, or its line in a Dockerfile, to an error.
func (s Step) locate(err error) error {
	var told *sandbox.Error
	switch {
	case s.Text == "" || !errors.As(err, &told) || told.Code == sandbox.Internal:
		return err
	case s.Line == 0:
		return sandbox.Errorf(told.Code, "%s: %s", s.Text, told.Detail).WithCause(err)
	}
	return sandbox.Errorf(told.Code, "Dockerfile line %d: %s: %s", s.Line, s.Text, told.Detail).WithCause(err)
}

// checkLiteral returns an error for an invalid literal Step.
func (s Step) checkLiteral() error {
	for _, a := range s.Argv {
		if len(a) > execution.MaxCommand {
			return fmt.Errorf("the command has %d bytes; it may have at most %d", len(a), execution.MaxCommand)
		}
	}
	return sandbox.CheckEnv(s.Env)
}
