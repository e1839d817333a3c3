package gvisor

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

var (
	_ sandbox.Porter       = (*Engine)(nil)
	_ sandbox.Deduplicator = (*Engine)(nil)
)

const (
	// maxProof bounds the Proof of an exported state, in bytes.
	maxProof = 1 << 20
	// carried is the copy buffer's size, in bytes.
	carried = 1 << 20
)

// ExportSaved writes the Proof of a state, after its length in 4 bytes, then the image if
// image is set, and then the state's files, one after the other.
func (e *Engine) ExportSaved(ctx context.Context, name string, image bool, w io.Writer) error {
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", name)
	}
	host, err := e.pausing(ctx, e.own)
	if err != nil {
		return err
	}
	proof, files, err := host.Export(ctx, sentryhost.ExportRequest{Name: name, Image: image})
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	_, sizes, err := contentOf(proof)
	if image && err == nil {
		sizes = append(sizes, proof.ImageBytes)
	}
	if err == nil && len(sizes) != len(files) {
		err = fmt.Errorf("%d files of %d", len(files), len(sizes))
	}
	if err != nil {
		return fmt.Errorf("export: the answer of the sentry host: %w", err)
	}
	head, err := json.Marshal(proof)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(head))), head...)); err != nil {
		return err
	}
	if image { // it comes before the files, which need it
		last := len(files) - 1
		files, sizes = append(files[last:], files[:last]...), append(sizes[last:], sizes[:last]...)
	}
	buf := make([]byte, carried)
	for i, f := range files {
		if err := copyAll(ctx, w, io.NewSectionReader(f, 0, sizes[i]), buf); err != nil {
			return err
		}
	}
	return nil
}

// contentOf returns the manifest of a state, and the size of each of its files, in bytes.
func contentOf(p sentryhost.Proof) (m sentryhost.Manifest, sizes []int64, err error) {
	if err := json.Unmarshal(p.Manifest, &m); err != nil {
		return m, nil, err
	}
	for _, f := range m.Files {
		if f.Bytes < 0 {
			return m, nil, errors.New("a file has a negative size")
		}
		sizes = append(sizes, f.Bytes)
	}
	return m, sizes, m.CPU.Check()
}

// copyAll copies r until its end, or until ctx ends.
func copyAll(ctx context.Context, w io.Writer, r io.Reader, buf []byte) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ImportSaved sends the state through a pipe to the sentry host, which writes it.
func (e *Engine) ImportSaved(ctx context.Context, name string, r io.Reader) (sandbox.Saved, error) {
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", name)
	}
	host, err := e.pausing(ctx, e.own)
	if err != nil {
		return sandbox.Saved{}, err
	}
	in := bufio.NewReaderSize(r, carried)
	proof, m, sizes, err := readProof(in)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if err := e.admitCPU(host, m.CPU); err != nil {
		return sandbox.Saved{}, err
	}
	total := proof.ImageBytes
	for _, size := range sizes {
		if total += size; total < 0 {
			return sandbox.Saved{}, notExported(errors.New("its sizes are wrong"))
		}
	}
	req := sentryhost.ImportRequest{Name: name, Proof: proof, Revoked: e.revoked()}
	if err := e.bringBuild(ctx, host, req, m); err != nil {
		return sandbox.Saved{}, err
	}
	out, pipe, err := os.Pipe()
	if err != nil {
		return sandbox.Saved{}, fmt.Errorf("import: %w", err)
	}
	type answer struct {
		saved sandbox.Saved
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		saved, err := host.Import(ctx, req, out)
		out.Close()
		answered <- answer{saved, err}
	}()
	sent := sendState(ctx, pipe, in, total)
	pipe.Close()
	a := <-answered
	switch {
	case a.err == nil:
		return a.saved, nil // it got the whole state, even if the pipe returned an error
	case ctx.Err() != nil:
		e.forget(ctx, name)
		return sandbox.Saved{}, ctx.Err()
	case sent != nil && !errors.Is(sent, errRefused):
		return sandbox.Saved{}, sent
	}
	return sandbox.Saved{}, a.err
}

// revoked returns the list of revoked sentry hosts; nil: none is known.
func (e *Engine) revoked() []byte {
	if e.cfg.Revoked == nil {
		return nil
	}
	return e.cfg.Revoked()
}

// forget deletes a state that may have been made after its request ended.
func (e *Engine) forget(ctx context.Context, name string) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := e.DeleteSaved(undo, name); err != nil {
		e.cfg.Log.Error("deleting a saved state whose request has ended failed", telemetry.KeySnapshot, name, telemetry.KeyError, err)
	}
}

func notExported(cause error) error {
	return sandbox.Errorf(sandbox.Invalid, "the content differs from the exported snapshot").WithCause(cause)
}

// readProof reads the Proof before the files. The Manifest in it is not verified yet.
func readProof(r io.Reader) (p sentryhost.Proof, m sentryhost.Manifest, sizes []int64, err error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return p, m, nil, cutOff(err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxProof {
		return p, m, nil, notExported(fmt.Errorf("its proof has %d bytes", n))
	}
	head := make([]byte, n)
	if _, err := io.ReadFull(r, head); err != nil {
		return p, m, nil, cutOff(err)
	}
	if err := json.Unmarshal(head, &p); err != nil {
		return p, m, nil, notExported(err)
	}
	if m, sizes, err = contentOf(p); err == nil && p.ImageBytes < 0 {
		err = errors.New("its image has a negative size")
	}
	if err != nil {
		return p, m, nil, notExported(err)
	}
	return p, m, sizes, nil
}

// cutOff maps an early end of r to Invalid; other errors stay.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return notExported(err)
	}
	return err
}

// errRefused means that the other end of a pipe was closed: its owner knows the reason.
var errRefused = errors.New("the sentry host accepts no more data")

// ShareSaved calls the sentry host, which packs states when they are old enough.
func (e *Engine) ShareSaved(ctx context.Context, name, group string) error {
	host, err := e.pausing(ctx, e.own)
	if err != nil {
		return err
	}
	return host.Share(ctx, sentryhost.ShareRequest{Name: name, Group: group})
}

// sendState writes total bytes of r into a pipe, and then ImportEnd if r ends exactly
// there.
func sendState(ctx context.Context, pipe io.Writer, r io.Reader, total int64) error {
	refusable := refusing{pipe}
	buf := make([]byte, carried)
	left := &io.LimitedReader{R: r, N: total}
	if err := copyAll(ctx, refusable, left, buf); err != nil {
		return err
	}
	if left.N > 0 {
		return notExported(fmt.Errorf("%d bytes are missing", left.N))
	}
	switch n, err := io.ReadFull(r, buf[:1]); {
	case n > 0:
		return notExported(errors.New("something follows its end"))
	case err != io.EOF:
		return err
	}
	_, err := refusable.Write([]byte{sentryhost.ImportEnd})
	return err
}

// refusing marks errors of writing to a pipe, to distinguish them from errors of
// reading the source.
type refusing struct{ io.Writer }

func (r refusing) Write(p []byte) (int, error) {
	n, err := r.Writer.Write(p)
	if err != nil {
		err = fmt.Errorf("%w: %w", errRefused, err)
	}
	return n, err
}
