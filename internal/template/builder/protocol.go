package builder

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// The protocol on the socket is HTTP. The query holds the Tenant and, where images are
// added, its quota, because the builder does not open the database. The body of a new
// build is one line of JSON, then the uploaded files in frames, and then the archive. A
// log is lines of JSON.
const (
	pathBuilds    = "/v1/builds"
	pathTemplates = "/v1/templates"
	pathTags      = "/v1/tags"
	pathImages    = "/v1/images"
	pathImage     = "/v1/image" // its bytes
	pathReuses    = "/v1/reuses"
	pathEnded     = "/v1/ended"

	maxRequest = 24 << 20 // bytes of a request for a build, without the archive

	keyVersion = "version" // query parameters about an image
	keyBytes   = "bytes"
	keyCopy    = "copy" // not empty: the image may be removed while it is read
)

// failure is an error sent to the server.
type failure struct {
	Code       sandbox.Code  `json:"code"`
	Detail     string        `json:"detail"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	OverQuota  bool          `json:"over_quota,omitempty"`
}

// failureFrom converts the public part of an error; other errors stay in this process's
// log.
func failureFrom(err error) failure {
	var told *sandbox.Error
	if errors.As(err, &told) {
		return failure{told.Code, told.Detail, told.RetryAfter, errors.Is(err, sandbox.ErrOverQuota)}
	}
	return failure{Code: sandbox.Internal, Detail: "the builder failed; its log says why"}
}

func (f failure) err() error {
	e := sandbox.Errorf(f.Code, "%s", f.Detail)
	e.RetryAfter = f.RetryAfter
	if f.OverQuota {
		return e.WithCause(sandbox.ErrOverQuota)
	}
	return e
}

// keyQuota is the query parameter that bounds a Tenant's images, in bytes.
const keyQuota = "template_bytes"

func quotaQuery(q sandbox.Quota) url.Values {
	return url.Values{keyQuota: {strconv.FormatInt(q.TemplateBytes, 10)}}
}

func quotaFrom(query url.Values) (q sandbox.Quota, err error) {
	if q.TemplateBytes, err = strconv.ParseInt(query.Get(keyQuota), 10, 64); err != nil {
		return q, sandbox.Errorf(sandbox.Invalid, "%s is missing", keyQuota)
	}
	return q, nil
}

// logMessage is one line of a log, or the error that ended it.
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
