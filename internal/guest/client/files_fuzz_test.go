package client

import (
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// fine fails when a text of a Guest's is passed on that no client could read.
func fine(t *testing.T, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if !utf8.ValidString(s) || len(s) > 3*maxMatchText {
			t.Fatalf("%.100q is passed on", s)
		}
	}
}

// Whatever a Guest tells of files, what is passed on is within its bounds.
func FuzzFileAnswers(f *testing.F) {
	for _, m := range []proto.Message{
		&guestv1.WatchResponse{Event: &guestv1.WatchResponse_Position{Position: &guestv1.WatchPosition{Cursor: "a-1", Reset_: true}}},
		&guestv1.WatchResponse{Event: &guestv1.WatchResponse_Change{Change: &guestv1.FileChange{Type: 1, Path: "/a\xff", Cursor: "a-2"}}},
		&guestv1.SearchMatch{Path: "/a", Line: 1, Text: []byte("a\xffb"), Spans: []*guestv1.SearchSpan{{Start: 1, End: 3}}},
		&guestv1.FileEntry{Name: "a", Path: "/a", Size: 1, Mode: 1 << 31},
	} {
		if raw, err := proto.Marshal(m); err == nil {
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var watch guestv1.WatchResponse
		if proto.Unmarshal(raw, &watch) == nil {
			checkWatch(t, &watch)
		}
		var match guestv1.SearchMatch
		if proto.Unmarshal(raw, &match) == nil {
			checkMatch(t, &match)
		}
		var info guestv1.FileEntry
		if proto.Unmarshal(raw, &info) == nil {
			if e, err := entryOf(&info); err == nil {
				fine(t, e.Name, e.Path, e.Owner, e.Group, e.SymlinkTarget)
				if e.Size < 0 || e.Mode > 0o7777 {
					t.Fatalf("%+v is passed on", e)
				}
			}
		}
	})
}

func checkWatch(t *testing.T, m *guestv1.WatchResponse) {
	t.Helper()
	e, err := watchEventOf(m)
	switch {
	case err != nil:
	case e.Position != nil && e.Change == nil:
		if !cursorPattern.MatchString(e.Position.Cursor) {
			t.Fatalf("the cursor %q is passed on", e.Position.Cursor)
		}
	case e.Change != nil && e.Position == nil:
		fine(t, e.Change.Path)
		if !cursorPattern.MatchString(e.Change.Cursor) || e.Change.Type == "" {
			t.Fatalf("%+v is passed on", e.Change)
		}
	default:
		t.Fatalf("%+v is both or neither", e)
	}
}

func checkMatch(t *testing.T, m *guestv1.SearchMatch) {
	t.Helper()
	match, _, err := matchOf(m)
	if err != nil {
		return
	}
	fine(t, append([]string{match.Path, match.Text}, append(match.Before, match.After...)...)...)
	for _, s := range match.Spans {
		if s.Start < 0 || s.End < s.Start || s.End > len(match.Text) {
			t.Fatalf("the span %v of %q is passed on", s, match.Text)
		}
	}
}

// Whatever the head of a Guest's answer to a read says, the part that is passed
// on is one of the file.
func FuzzReadHead(f *testing.F) {
	f.Add(206, "bytes 0-4/10", `"1-2"`, "Mon, 02 Jan 2006 15:04:05 GMT", int64(5))
	f.Add(416, "bytes */10", `W/"x"`, "", int64(0))
	f.Add(206, "bytes 5-4/3", "\"\r\n\"", "x", int64(-1))
	f.Fuzz(func(t *testing.T, code int, span, tag, modified string, length int64) {
		resp := &http.Response{
			StatusCode: code, ContentLength: length, Body: http.NoBody,
			Header: http.Header{"Content-Range": {span}, "Etag": {tag}, "Last-Modified": {modified}},
		}
		file, err := fileBodyOf(resp, execution.ReadOptions{Range: "bytes=0-4", IfNoneMatch: `"x"`})
		if err != nil {
			return
		}
		if strings.ContainsAny(file.ETag, "\r\n") || file.Outcome == execution.ReadPart && (file.Start < 0 || file.Size < 1 || file.Start+file.Size > file.Total) {
			t.Fatalf("%+v is passed on", file)
		}
	})
}
