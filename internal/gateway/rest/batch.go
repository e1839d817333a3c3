package rest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

// Bounds of a batch.
const (
	maxOperations   = 256
	maxBatchRead    = 1 << 20 // bytes of one file
	maxBatchReads   = 8 << 20 // bytes of all
	maxBatchEntries = 10_000  // of all lists
)

// batch is several operations on the files of one Sandbox, one after the other.
type batch struct {
	guest       files
	readsLeft   int64 // bytes
	entriesLeft int
	memory      spool.Gather
}

// operation is one of a batch, checked.
type operation func(ctx context.Context, b *batch) (v1.BatchResult, error)

// operations makes each kind of operation from its fields.
var operations = map[string]func(raw []byte) (operation, error){
	"read": readOperation, "write": writeOperation, "stat": statOperation, "list": listOperation, "mkdir": mkdirOperation,
	"move": moveOperation, "copy": copyOperation, "chmod": chmodOperation, "remove": removeOperation,
}

// BatchFiles answers POST /api/v1/files/batch with the result of each operation.
// Nothing is done when one of them is malformed.
func (a *API) BatchFiles(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.BatchRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	steps, err := parseOperations(body.Operations)
	if err != nil {
		return err
	}
	guest, err := a.guest(r.Context(), who, body.Target)
	if err != nil {
		return err
	}
	b := &batch{guest: guest, memory: spool.Gather{Most: maxBatchReads}, readsLeft: maxBatchReads, entriesLeft: maxBatchEntries}
	results, failed, err := b.run(r.Context(), steps, body.StopOnError)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.BatchResults{Results: results, Failed: failed})
}

func parseOperations(raws []json.RawMessage) ([]operation, error) {
	if len(raws) < 1 || len(raws) > maxOperations {
		return nil, sandbox.Errorf(sandbox.Invalid, "operations needs 1 to %d operations", maxOperations)
	}
	steps := make([]operation, len(raws))
	for i, raw := range raws {
		var kind struct {
			Op string `json:"op"`
		}
		if err := json.Unmarshal(raw, &kind); err != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "operations[%d] is not an object with an op", i)
		}
		parse := operations[kind.Op]
		if parse == nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "operations[%d]: op must be read, write, stat, list, mkdir, move, copy, chmod or remove", i)
		}
		var err error
		if steps[i], err = parse(raw); err != nil {
			f := status.Of(err)
			return nil, sandbox.Errorf(f.Code, "operations[%d]: %s", i, f.Message)
		}
	}
	return steps, nil
}

// run runs the operations. After a failure the rest are skipped when stop is set or
// when the Sandbox does not answer. It fails when the request has ended.
func (b *batch) run(ctx context.Context, steps []operation, stop bool) (results []v1.BatchResult, failed int, err error) {
	results = make([]v1.BatchResult, len(steps))
	over := false
	for i, step := range steps {
		if over {
			results[i].Status = "skipped"
			failed++
			continue
		}
		result, err := step(ctx, b)
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		if err != nil {
			f := status.Of(err)
			result = v1.BatchResult{Status: "error", Error: &f}
			over = stop || errors.Is(err, sandbox.Unavailable)
			failed++
		} else {
			result.Status = "ok"
		}
		results[i] = result
	}
	return results, failed, nil
}

// pathOperation is an operation that needs only a path.
type pathOperation struct {
	Op   string `json:"op"`
	Path string `json:"path"`
}

func (f *pathOperation) parse(raw []byte) (string, error) {
	if err := decodeObject(raw, f); err != nil {
		return "", err
	}
	return execution.Path("path", f.Path)
}

// entryResult is the result of an operation that ends in one file.
func entryResult(e execution.Entry, err error) (v1.BatchResult, error) {
	if err != nil {
		return v1.BatchResult{}, err
	}
	v := FileViewOf(e)
	return v1.BatchResult{Entry: &v}, nil
}

func statOperation(raw []byte) (operation, error) {
	p, err := new(pathOperation).parse(raw)
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) { return entryResult(b.guest.Stat(ctx, p)) }, err
}

func mkdirOperation(raw []byte) (operation, error) {
	p, err := new(pathOperation).parse(raw)
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) {
		return entryResult(b.guest.MakeDir(ctx, p))
	}, err
}

func listOperation(raw []byte) (operation, error) {
	var f struct {
		pathOperation
		Depth *int `json:"depth"`
	}
	if err := decodeObject(raw, &f); err != nil {
		return nil, err
	}
	p, err := execution.Path("path", f.Path)
	if err != nil {
		return nil, err
	}
	depth, err := execution.Depth(f.Depth)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) { return b.list(ctx, p, depth) }, nil
}

func (b *batch) list(ctx context.Context, p string, depth int) (v1.BatchResult, error) {
	entries, truncated, err := b.guest.List(ctx, p, depth)
	if err != nil {
		return v1.BatchResult{}, err
	}
	if len(entries) > b.entriesLeft {
		entries, truncated = entries[:b.entriesLeft], true
	}
	b.entriesLeft -= len(entries)
	views := make([]v1.File, len(entries))
	for i, e := range entries {
		views[i] = FileViewOf(e)
	}
	return v1.BatchResult{Entries: &views, Truncated: &truncated}, nil
}

func moveOperation(raw []byte) (operation, error) {
	var f struct {
		Op          string `json:"op"`
		Source      string `json:"source"`
		Destination string `json:"destination"`
	}
	if err := decodeObject(raw, &f); err != nil {
		return nil, err
	}
	source, err := execution.Path("source", f.Source)
	if err != nil {
		return nil, err
	}
	destination, err := execution.Path("destination", f.Destination)
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) {
		return entryResult(b.guest.Move(ctx, source, destination))
	}, err
}

func copyOperation(raw []byte) (operation, error) {
	var f struct {
		Op string `json:"op"`
		v1.FileCopy
	}
	if err := decodeObject(raw, &f); err != nil {
		return nil, err
	}
	req, err := copyRequest(&f.FileCopy)
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) {
		copied, err := b.guest.Copy(ctx, req)
		return entryResult(copied.Entry, err)
	}, err
}

func chmodOperation(raw []byte) (operation, error) {
	var f struct {
		Op string `json:"op"`
		v1.FileChmod
	}
	if err := decodeObject(raw, &f); err != nil {
		return nil, err
	}
	req, err := chmodRequest(&f.FileChmod)
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) {
		changed, err := b.guest.Chmod(ctx, req)
		return v1.BatchResult{Changed: &changed}, err
	}, err
}

func removeOperation(raw []byte) (operation, error) {
	var f struct {
		pathOperation
		Recursive bool `json:"recursive"`
	}
	if err := decodeObject(raw, &f); err != nil {
		return nil, err
	}
	p, err := execution.Path("path", f.Path)
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) {
		return v1.BatchResult{}, execution.Remove(ctx, b.guest, p, f.Recursive)
	}, err
}

func writeOperation(raw []byte) (operation, error) {
	var f struct {
		pathOperation
		Content       *string `json:"content"`
		ContentBase64 *string `json:"content_base64"`
		Mode          *string `json:"mode"`
	}
	if err := decodeObject(raw, &f); err != nil {
		return nil, err
	}
	p, err := execution.Path("path", f.Path)
	if err != nil {
		return nil, err
	}
	content, err := writtenContent(f.Content, f.ContentBase64)
	if err != nil || f.Mode == nil {
		return func(ctx context.Context, b *batch) (v1.BatchResult, error) {
			return entryResult(b.write(ctx, p, content))
		}, err
	}
	mode, err := execution.FileMode(*f.Mode)
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) {
		if _, err := b.write(ctx, p, content); err != nil {
			return v1.BatchResult{}, err
		}
		if _, err := b.guest.Chmod(ctx, execution.ChmodRequest{Path: p, Mode: mode}); err != nil {
			return v1.BatchResult{}, err
		}
		return entryResult(b.guest.Stat(ctx, p))
	}, err
}

func writtenContent(text, encoded *string) (string, error) {
	switch {
	case (text == nil) == (encoded == nil):
		return "", sandbox.Errorf(sandbox.Invalid, "a write needs either content or content_base64")
	case text != nil:
		return *text, nil
	}
	data, err := base64.StdEncoding.DecodeString(*encoded)
	if err != nil {
		return "", sandbox.Errorf(sandbox.Invalid, "content_base64 is not base64")
	}
	return string(data), nil
}

func (b *batch) write(ctx context.Context, p, content string) (execution.Entry, error) {
	return b.guest.WriteFile(ctx, p, strings.NewReader(content), int64(len(content)))
}

func readOperation(raw []byte) (operation, error) {
	var f struct {
		pathOperation
		MaxBytes *int64 `json:"max_bytes"`
	}
	if err := decodeObject(raw, &f); err != nil {
		return nil, err
	}
	p, err := execution.Path("path", f.Path)
	if err != nil {
		return nil, err
	}
	limit := int64(maxBatchRead)
	if f.MaxBytes != nil {
		limit = *f.MaxBytes
	}
	if limit < 1 || limit > maxBatchRead {
		return nil, sandbox.Errorf(sandbox.Invalid, "max_bytes must be from 1 to %d", maxBatchRead)
	}
	return func(ctx context.Context, b *batch) (v1.BatchResult, error) { return b.read(ctx, p, limit) }, nil
}

// read reads the first bytes of a file: as text, if they are.
func (b *batch) read(ctx context.Context, p string, limit int64) (v1.BatchResult, error) {
	file, err := b.guest.ReadFile(ctx, p, execution.ReadOptions{})
	if err != nil {
		return v1.BatchResult{}, err
	}
	defer file.Body.Close()
	limit = min(limit, b.readsLeft)
	data, err := io.ReadAll(io.LimitReader(file.Body, limit+1))
	if err != nil {
		return v1.BatchResult{}, sandbox.Errorf(sandbox.Unavailable, "the file broke off").WithCause(err)
	}
	truncated := int64(len(data)) > limit
	if truncated {
		data = data[:limit]
	}
	b.readsLeft -= int64(len(data))
	if err := b.memory.Add(ctx, len(data)); err != nil {
		return v1.BatchResult{}, err
	}
	result := v1.BatchResult{Truncated: &truncated}
	if text, ok := wholeText(data, truncated); ok {
		result.Content = &text
	} else {
		encoded := base64.StdEncoding.EncodeToString(data)
		result.ContentBase64 = &encoded
	}
	return result, nil
}

// wholeText returns data as text, without the beginning of a character that was
// cut; false when it is not UTF-8.
func wholeText(data []byte, cut bool) (string, bool) {
	for i := 1; cut && i < utf8.UTFMax && i <= len(data); i++ {
		if c := data[len(data)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(data[len(data)-i:]) {
				data = data[:len(data)-i]
			}
			break
		}
	}
	return string(data), utf8.Valid(data)
}
