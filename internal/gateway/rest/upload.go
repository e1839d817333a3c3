package rest

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

const (
	maxUploads  = 1000 // files of one form
	maxBoundary = 70   // bytes, as in RFC 2046
)

// UploadFiles answers POST /api/v1/files: each file of a form is written below a
// directory, by its file name.
func (a *API) UploadFiles(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	form, err := formOf(r)
	if err != nil {
		return err
	}
	guest, dir, _, err := a.fileTarget(r, who)
	if err != nil {
		return err
	}
	entries := []v1.File{}
	for {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return formError(err)
		}
		if len(entries) == maxUploads {
			return sandbox.Errorf(sandbox.TooLarge, "a form may have at most %d files; those before it are written", maxUploads)
		}
		entry, err := upload(w, r, guest, dir, part)
		if err != nil {
			return err
		}
		entries = append(entries, FileViewOf(entry))
	}
	if len(entries) == 0 {
		return sandbox.Errorf(sandbox.Invalid, "the form has no file")
	}
	return Reply(w, http.StatusOK, v1.WrittenFiles{Entries: entries})
}

// formOf is the body of r as a form with files.
func formOf(r *http.Request) (*multipart.Reader, error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	boundary := params["boundary"]
	if err != nil || kind != "multipart/form-data" || boundary == "" || len(boundary) > maxBoundary {
		return nil, sandbox.Errorf(sandbox.Invalid, "send files as multipart/form-data, or one file with PUT")
	}
	return multipart.NewReader(r.Body, boundary), nil
}

// formError keeps a Code that a body reader gave; another failure to take a
// form apart is the client's.
func formError(err error) error {
	if sandbox.CodeOf(err) != sandbox.Internal {
		return err
	}
	return sandbox.Errorf(sandbox.Invalid, "the form is malformed or broke off").WithCause(err)
}

// upload writes one file of a form.
func upload(w http.ResponseWriter, r *http.Request, guest execution.Files, dir string, part *multipart.Part) (execution.Entry, error) {
	p, err := uploadPath(dir, part.Header.Get("Content-Disposition"))
	if err != nil {
		return execution.Entry{}, err
	}
	body := NewClientBody(part, http.NewResponseController(w))
	entry, err := guest.WriteFile(r.Context(), p, body, -1)
	if failed := body.Finish(); failed != nil {
		return entry, formError(failed) // the client's failure, not the Guest's
	}
	return entry, err
}

// uploadPath is the destination of a file in a form. Its name keeps its directories;
// the standard library keeps the last part only.
func uploadPath(dir, disposition string) (string, error) {
	kind, params, err := mime.ParseMediaType(disposition)
	if err != nil || kind != "form-data" {
		return "", sandbox.Errorf(sandbox.Invalid, "a part of the form has no Content-Disposition: form-data")
	}
	name := params["filename"]
	switch {
	case name == "":
		return "", sandbox.Errorf(sandbox.Invalid, "the part %.64q of the form has no file name", params["name"])
	case strings.HasPrefix(name, "/"):
		return "", sandbox.Errorf(sandbox.Invalid, "the file name %.64q must not begin with /", name)
	case len(name) > execution.MaxPath:
		return "", sandbox.Errorf(sandbox.Invalid, "a file name has more than %d bytes", execution.MaxPath)
	}
	p, err := execution.Path("the file name", dir+"/"+name)
	if err == nil && p == dir {
		err = sandbox.Errorf(sandbox.Invalid, "the file name %.64q names no file", name)
	}
	return p, err
}
