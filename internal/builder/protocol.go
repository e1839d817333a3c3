package builder

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// What is said over the socket: requests of HTTP whose query names the Tenant.
// The body of a new build is one line of JSON, and then the archive. A log is
// lines of JSON.
const (
	pathBuilds    = "/v1/builds"
	pathTemplates = "/v1/templates"
	pathTags      = "/v1/tags"
	pathImages    = "/v1/images"
	pathReuses    = "/v1/reuses"
	pathEnded     = "/v1/ended"

	maxRequest = 24 << 20 // bytes of a request for a build, without the archive
)

// failure is an error on its way to the server.
type failure struct {
	Code       sandbox.Code  `json:"code"`
	Detail     string        `json:"detail"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
}

// failureFrom carries what may be told; the rest stays in this process's log.
func failureFrom(err error) failure {
	var told *sandbox.Error
	if errors.As(err, &told) {
		return failure{told.Code, told.Detail, told.RetryAfter}
	}
	return failure{Code: sandbox.Internal, Detail: "the builder failed; its log says why"}
}

func (f failure) err() error {
	e := sandbox.Errorf(f.Code, "%s", f.Detail)
	e.RetryAfter = f.RetryAfter
	return e
}

// logMessage is one line of a log, or why there are no more.
type logMessage struct {
	Line    *sandbox.BuildLine `json:"line,omitempty"`
	Failure *failure           `json:"failure,omitempty"`
}

// readRequest reads the first line of a new build's body.
func readRequest(body *bufio.Reader) (req sandbox.TemplateRequest, err error) {
	var line []byte
	for {
		part, err := body.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxRequest {
			return req, sandbox.Errorf(sandbox.TooLarge, "a template's description may have at most %d bytes", maxRequest)
		}
		if err == nil || errors.Is(err, io.EOF) {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return req, err
		}
	}
	if json.Unmarshal(line, &req) != nil {
		return req, sandbox.Errorf(sandbox.Invalid, "the description of the template is not JSON")
	}
	return req, nil
}
