package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
)

const (
	// defaultLines is the number of lines of a file that one result shows; maxLine is the
	// number of bytes that it shows of one line.
	defaultLines = 2000
	maxLine      = 2000
	// maxFileText is the number of bytes of a file that one result shows.
	maxFileText = 128 << 10
	// maxSkipped is the most bytes of a file that are read to reach a line.
	maxSkipped = 64 << 20
	// maxEntries is the number of files of a folder that one result lists.
	maxEntries = 1000
)

type readFileInput struct {
	Path      string `json:"path" jsonschema:"the file; a relative path is below /workspace"`
	Offset    int    `json:"offset,omitempty" jsonschema:"the number of the first line to show, 1 by default"`
	Limit     int    `json:"limit,omitempty" jsonschema:"how many lines to show, 2000 by default"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type writeFileInput struct {
	Path      string `json:"path" jsonschema:"the file; a relative path is below /workspace, and folders are made"`
	Content   string `json:"content" jsonschema:"the whole content of the file"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type editFileInput struct {
	Path       string `json:"path" jsonschema:"the file; a relative path is below /workspace"`
	OldString  string `json:"old_string" jsonschema:"the text to replace, exactly as it stands in the file"`
	NewString  string `json:"new_string" jsonschema:"the text that replaces it"`
	ReplaceAll bool   `json:"replace_all,omitempty" jsonschema:"whether to replace every occurrence; otherwise there must be exactly one"`
	SandboxID  string `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type listFilesInput struct {
	Path      string `json:"path,omitempty" jsonschema:"the folder, /workspace by default"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type urlInput struct {
	Path      string   `json:"path" jsonschema:"the file; a relative path is below /workspace"`
	ExpiresIn *float64 `json:"expires_in_seconds,omitempty" jsonschema:"how long the URL is valid, 3600 by default"`
	SandboxID string   `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

func fileTools() []tool {
	sign := []*catalogue.Operation{catalogue.SignFile}
	return append([]tool{
		define(tool{
			name: "read_file", title: "Read a file",
			description: "Shows a text file with line numbers, or an image as an image. Long files are shown in parts.",
			calls:       []*catalogue.Operation{catalogue.ReadFile},
		}, func(ctx context.Context, c *call, in readFileInput) (*sdk.CallToolResult, error) {
			return c.readFile(ctx, in)
		}),
		define(tool{
			name: "write_file", title: "Write a file",
			description: "Makes a text the whole content of a file, which is created if need be.",
			calls:       []*catalogue.Operation{catalogue.WriteFile}, destroys: true, repeats: true,
		}, func(ctx context.Context, c *call, in writeFileInput) (*sdk.CallToolResult, error) {
			return c.writeFile(ctx, in)
		}),
		define(tool{
			name: "edit_file", title: "Edit a file",
			description: "Replaces a text in a file by another one.",
			calls:       []*catalogue.Operation{catalogue.ReplaceInFiles}, destroys: true,
		}, func(ctx context.Context, c *call, in editFileInput) (*sdk.CallToolResult, error) {
			return c.editFile(ctx, in)
		}),
		define(tool{
			name: "list_files", title: "List a folder",
			description: "Lists the files in a folder.",
			calls:       []*catalogue.Operation{catalogue.ListFiles},
		}, func(ctx context.Context, c *call, in listFilesInput) (*sdk.CallToolResult, error) {
			return c.listFiles(ctx, in)
		}),
		define(tool{
			name: "upload_url", title: "Make an upload URL",
			description: "Returns a URL that a file can be uploaded to with an HTTP PUT, without a key, until it expires. Use it for files that are too large for write_file, or that are not text.",
			calls:       sign,
		}, func(ctx context.Context, c *call, in urlInput) (*sdk.CallToolResult, error) {
			return c.signedURL(ctx, in, http.MethodPut)
		}),
		define(tool{
			name: "download_url", title: "Make a download URL",
			description: "Returns a URL that a file can be downloaded from with an HTTP GET, without a key, until it expires.",
			calls:       sign,
		}, func(ctx context.Context, c *call, in urlInput) (*sdk.CallToolResult, error) {
			return c.signedURL(ctx, in, http.MethodGet)
		}),
	}, searchTools()...)
}

func (c *call) readFile(ctx context.Context, in readFileInput) (*sdk.CallToolResult, error) {
	if in.Offset < 0 || in.Limit < 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "offset and limit must not be negative")
	}
	id, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	content, size, err := c.client.ReadFile(ctx, id, in.Path)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	r := bufio.NewReaderSize(content, 64<<10)
	start, err := r.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	kind := http.DetectContentType(start)
	switch {
	case strings.HasPrefix(kind, "image/") && size <= maxImage && kind != "image/x-icon" && kind != "image/bmp":
		return readImage(r, kind)
	case bytes.IndexByte(start, 0) >= 0:
		return nil, sandbox.Errorf(sandbox.Invalid, "%s is not text (%s, %d bytes): use a program in the sandbox to look at it", in.Path, kind, size)
	}
	return readLines(r, max(in.Offset, 1), in.Limit)
}

func readImage(r io.Reader, kind string) (*sdk.CallToolResult, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxImage+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxImage:
		return nil, sandbox.Errorf(sandbox.TooLarge, "the image has more than %d bytes", maxImage)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{Data: data, MIMEType: kind}}}, nil
}

// readLines returns lines with their numbers, from line number first on.
func readLines(r *bufio.Reader, first, most int) (*sdk.CallToolResult, error) {
	if most == 0 {
		most = defaultLines
	}
	var b strings.Builder
	shown, skipped := 0, 0
	for n := 1; ; n++ {
		line, cut, bytes, err := nextLine(r)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if bytes == 0 {
			if shown == 0 && first > 1 {
				return nil, sandbox.Errorf(sandbox.Invalid, "offset %d is beyond the end: the file has %d lines", first, n-1)
			}
			break
		}
		if n < first {
			if skipped += bytes; skipped > maxSkipped {
				return nil, sandbox.Errorf(sandbox.TooLarge, "line %d is more than %d bytes into the file: use a program in the sandbox", first, maxSkipped)
			}
			continue
		}
		if shown == most || b.Len() > maxFileText {
			note(&b, "there is more: continue with offset %d", n)
			break
		}
		fmt.Fprintf(&b, "%6d\t%s\n", n, strings.ToValidUTF8(line, "\ufffd"))
		if cut > 0 {
			note(&b, "%d bytes of line %d are left out", cut, n)
			b.WriteByte('\n')
		}
		shown++
	}
	if b.Len() == 0 {
		return text("(the file is empty)"), nil
	}
	return text(strings.TrimSuffix(b.String(), "\n")), nil
}

// nextLine returns the next line without its end, at most maxLine bytes of it. cut is
// the number of bytes left out, and read the number of all bytes read: zero at the
// end of the file.
func nextLine(r *bufio.Reader) (line string, cut, read int, err error) {
	var kept []byte
	for {
		part, err := r.ReadSlice('\n')
		read += len(part)
		whole := bytes.TrimRight(part, "\r\n")
		n := min(len(whole), maxLine-len(kept))
		kept = append(kept, whole[:n]...)
		cut += len(whole) - n
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(kept), cut, read, err
		}
	}
}

func (c *call) writeFile(ctx context.Context, in writeFileInput) (*sdk.CallToolResult, error) {
	id, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	e, err := c.client.WriteFile(ctx, id, in.Path, strings.NewReader(in.Content), int64(len(in.Content)))
	if err != nil {
		return nil, err
	}
	return text(fmt.Sprintf("%s has %d bytes now.", e.Path, e.SizeBytes)), nil
}

func (c *call) editFile(ctx context.Context, in editFileInput) (*sdk.CallToolResult, error) {
	if in.OldString == "" {
		return nil, sandbox.Errorf(sandbox.Invalid, "old_string is empty: name the text to replace, or write the whole file")
	}
	if in.OldString == in.NewString {
		return nil, sandbox.Errorf(sandbox.Invalid, "old_string and new_string are the same: nothing would change")
	}
	id, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	r := v1.ReplaceRequest{
		Target: v1.Target{SandboxID: id}, FileSelection: v1.FileSelection{Path: in.Path, Hidden: true, NoIgnore: true},
		Pattern: in.OldString, Replacement: &in.NewString,
	}
	if !in.ReplaceAll {
		r.ExpectedCount = new(int64(1))
	}
	if e, err := c.client.Stat(ctx, id, in.Path); err != nil {
		return nil, err
	} else if e.Type == "directory" {
		return nil, sandbox.Errorf(sandbox.Invalid, "%s is a folder: name a file", in.Path)
	}
	done, err := c.client.Replace(ctx, r)
	switch {
	case sandbox.CodeOf(err) == sandbox.Conflict && !in.ReplaceAll:
		return nil, sandbox.Errorf(sandbox.Conflict, "%s is not changed: old_string must occur exactly once (%s). Give more of the text around it, or set replace_all", in.Path, detail(err))
	case err != nil:
		return nil, err
	case done.Count == 0:
		return nil, sandbox.Errorf(sandbox.NotFound, "%s is not changed: it does not contain old_string", in.Path)
	}
	return text(fmt.Sprintf("%d occurrence(s) replaced in %s.", done.Count, in.Path)), nil
}

// detail returns the text of an error without its code.
func detail(err error) string {
	var coded *sandbox.Error
	if errors.As(err, &coded) {
		return coded.Detail
	}
	return err.Error()
}

func (c *call) listFiles(ctx context.Context, in listFilesInput) (*sdk.CallToolResult, error) {
	id, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	if in.Path == "" {
		in.Path = "."
	}
	list, err := c.client.ListFiles(ctx, id, in.Path)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, e := range list.Entries {
		if i == maxEntries {
			list.Truncated = true
			break
		}
		name := e.Name
		switch e.Type {
		case "directory":
			name += "/"
		case "symlink":
			name += " -> " + e.SymlinkTarget
		}
		fmt.Fprintf(&b, "%s %10d %s %s\n", e.Mode, e.SizeBytes, e.ModifiedAt.UTC().Format("2006-01-02 15:04"), name)
	}
	if len(list.Entries) == 0 {
		b.WriteString("(the folder is empty)")
	}
	if list.Truncated {
		note(&b, "more files exist: list a subfolder, or use glob")
	}
	return text(shorten(strings.TrimSuffix(b.String(), "\n"), maxFileText)), nil
}

func (c *call) signedURL(ctx context.Context, in urlInput, method string) (*sdk.CallToolResult, error) {
	expires, err := seconds("expires_in_seconds", in.ExpiresIn)
	if err != nil {
		return nil, err
	}
	id, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	signed, err := c.client.SignFile(ctx, v1.SignRequest{
		Target: v1.Target{SandboxID: id}, Path: in.Path, Method: method, ExpiresInSeconds: expires,
	})
	if err != nil {
		return nil, err
	}
	return object(signed)
}
