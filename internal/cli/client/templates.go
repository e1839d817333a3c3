package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const (
	templatesPath = "/api/v1/templates"
	buildsPath    = "/api/v1/builds/"
)

// Templates lists the templates that the caller can start sandboxes from, by name.
func (c *Client) Templates(ctx context.Context) ([]v1.Template, error) {
	var reply v1.Templates
	err := c.call(ctx, http.MethodGet, templatesPath, nil, nil, &reply)
	return reply.Templates, err
}

// TemplateVersions lists the versions of the Template that a name means, newest
// first.
func (c *Client) TemplateVersions(ctx context.Context, name string) ([]v1.Template, error) {
	var reply v1.TemplateVersions
	err := c.call(ctx, http.MethodGet, templatesPath+"/"+url.PathEscape(name), nil, nil, &reply)
	return reply.Versions, err
}

// RemoveTemplate removes a Template, a tag or a version.
func (c *Client) RemoveTemplate(ctx context.Context, name string) (gone v1.RemovedTemplates, err error) {
	err = c.call(ctx, http.MethodDelete, templatesPath+"/"+url.PathEscape(name), nil, nil, &gone)
	return gone, err
}

// StartBuild queues a build. files is an archive of the files to add; nil: none.
// archive is the image of a source "tar:" or the context of a Dockerfile, nil
// otherwise; it is read to its end unless the server refuses it.
func (c *Client) StartBuild(ctx context.Context, t v1.TemplateRequest, files, archive io.Reader) (b v1.Build, err error) {
	if files == nil && archive == nil {
		err = c.call(ctx, http.MethodPost, templatesPath, nil, t, &b)
		return b, err
	}
	read, write := io.Pipe()
	form := multipart.NewWriter(write)
	sent := make(chan error, 1)
	go func() {
		err := writeForm(form, t, files, archive)
		write.CloseWithError(err)
		sent <- err
	}()
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: templatesPath, body: read, size: -1, kind: form.FormDataContentType(),
		header: http.Header{"Expect": {"100-continue"}},
	})
	read.CloseWithError(errAnswered)
	if here := <-sent; here != nil && !errors.Is(here, errAnswered) && !errors.Is(here, io.ErrClosedPipe) && ctx.Err() == nil {
		if err == nil {
			resp.Body.Close()
		}
		return b, here
	}
	if err != nil {
		return b, err
	}
	return b, decode(resp, &b)
}

var errAnswered = errors.New("the server accepts no more data")

func writeForm(form *multipart.Writer, t v1.TemplateRequest, files, archive io.Reader) error {
	part, err := form.CreateFormField("template")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(part).Encode(t); err != nil {
		return err
	}
	for _, upload := range []struct {
		name string
		from io.Reader
	}{{"files", files}, {"archive", archive}} {
		if upload.from == nil {
			continue
		}
		if part, err = form.CreateFormFile(upload.name, upload.name+".tar"); err != nil {
			return err
		}
		if _, err := io.Copy(part, upload.from); err != nil {
			return err
		}
	}
	return form.Close()
}

// FollowBuild calls line for each line of a build's log until the build has ended,
// and returns the build's final state.
func (c *Client) FollowBuild(ctx context.Context, id string, line func(text string) error) (b v1.Build, err error) {
	resp, err := c.do(ctx, request{
		method: http.MethodGet, path: buildsPath + url.PathEscape(id) + "/log", query: url.Values{"follow": {"true"}},
		header: http.Header{"Accept": {"text/event-stream"}},
	})
	if err != nil {
		return b, err
	}
	defer resp.Body.Close()
	ended := false
	err = events(resp, func(_, kind string, data []byte) error {
		switch kind {
		case "line":
			var l v1.BuildLine
			if err := parse(data, &l); err != nil {
				return err
			}
			return line(l.Text)
		case "end":
			ended = true
			return parse(data, &b)
		}
		return nil
	})
	if err == nil && !ended {
		err = broken(resp, io.ErrUnexpectedEOF)
	}
	return b, err
}

// CancelBuild cancels a build.
func (c *Client) CancelBuild(ctx context.Context, id string) (b v1.Build, err error) {
	err = c.call(ctx, http.MethodDelete, buildsPath+url.PathEscape(id), nil, nil, &b)
	return b, err
}
