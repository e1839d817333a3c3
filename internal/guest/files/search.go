package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"regexp/syntax"
	"slices"
	"time"

	"connectrpc.com/connect"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	maxPattern = 4096   // bytes
	maxResults = 10_000 // of one search
	maxContext = 20     // lines before and after
	maxLine    = 64 << 10
	maxText    = 2 << 10 // bytes of a line that are reported
	maxSpans   = 100     // of a line
	searchTime = 30 * time.Second
)

// compile compiles the expression of a search. Lines are matched one by one, so
// that ^ and $ match at the ends of a line.
func compile(pattern string, literal, ignoreCase, word bool) (*regexp.Regexp, error) {
	if len(pattern) > maxPattern {
		return nil, invalid("the pattern has more than %d bytes", maxPattern)
	}
	flags := "m"
	if ignoreCase {
		flags += "i"
	}
	if literal {
		pattern = regexp.QuoteMeta(pattern)
	}
	if _, err := syntax.Parse(pattern, syntax.Perl); err != nil {
		return nil, invalid("the pattern is not RE2: %v", err)
	}
	if word {
		pattern = `\b(?:` + pattern + `)\b`
	}
	re, err := regexp.Compile("(?" + flags + ")" + pattern)
	if err != nil {
		return nil, invalid("the pattern is not RE2: %v", err)
	}
	return re, nil
}

// Search finds lines in files, or files by name.
func (s *Service) Search(ctx context.Context, r *connect.Request[guestv1.SearchRequest], stream *connect.ServerStream[guestv1.SearchResponse]) error {
	m := r.Msg
	u, err := s.user(m.User)
	if err != nil {
		return err
	}
	files, err := newSelection(m.Files)
	if err != nil {
		return err
	}
	if m.MaxResults < 1 || m.MaxResults > maxResults || m.ContextLines < 0 || m.ContextLines > maxContext {
		return invalid("at most %d results and %d lines of context are possible", maxResults, maxContext)
	}
	f := &finder{
		within: files,
		left:   int(m.MaxResults), context: int(m.ContextLines), once: m.FilesOnly,
		send: func(match *guestv1.SearchMatch) error {
			return stream.Send(&guestv1.SearchResponse{Event: &guestv1.SearchResponse_Match{Match: match}})
		},
	}
	if m.Pattern != "" {
		if f.re, err = compile(m.Pattern, m.Literal, m.IgnoreCase, m.Word); err != nil {
			return err
		}
		f.perLine = linewise(f.re)
	}
	limited, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	err = server.As(u, func() error {
		if err := files.enter(); err != nil {
			return err
		}
		defer files.leave()
		return files.walk(limited, func(path string) error { return f.file(limited, path) })
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil || errors.Is(err, errTooMany) {
		f.truncated, err = true, nil
	}
	if err != nil {
		return fileError(files.root, err)
	}
	end := &guestv1.SearchEnd{Files: f.files, Truncated: f.truncated}
	return stream.Send(&guestv1.SearchResponse{Event: &guestv1.SearchResponse_End{End: end}})
}

// linewise reports whether an expression refers to the ends of the text, which
// differ from the ends of a line, or to the end of a line, which may be "\r\n".
func linewise(re *regexp.Regexp) bool {
	parsed, err := syntax.Parse(re.String(), syntax.Perl)
	return err != nil || asksForEnds(parsed)
}

func asksForEnds(re *syntax.Regexp) bool {
	ends := []syntax.Op{syntax.OpBeginText, syntax.OpEndText, syntax.OpEndLine}
	return slices.Contains(ends, re.Op) || slices.ContainsFunc(re.Sub, asksForEnds)
}

// finder searches files, one after the other.
type finder struct {
	re      *regexp.Regexp // nil: every file is a result
	perLine bool
	context int
	once    bool // one result per file
	left    int  // remaining number of results
	send    func(*guestv1.SearchMatch) error
	within  *selection

	files     int64
	truncated bool
	buf       []byte
}

// file searches one file. A file that cannot be read, or is not text, has no
// matches, unless it is the root of the request.
func (f *finder) file(ctx context.Context, path string) error {
	if f.re == nil {
		f.files++
		return f.tell(&guestv1.SearchMatch{Path: valid(path)})
	}
	in, err := f.within.open(path)
	if err != nil {
		if path == f.within.root {
			return fileError(path, err)
		}
		return nil
	}
	defer in.Close()
	f.files++
	if f.buf == nil {
		f.buf = make([]byte, 0, pieceSize+maxLine)
	}
	l := &lineFinder{finder: f, path: path}
	if err := l.read(ctx, in); err != nil && !errors.Is(err, errNextFile) {
		return err
	}
	return l.flush()
}

// errNextFile ends the search of one file.
var errNextFile = errors.New("next file")

// tell sends a result, and ends the search when the number of results is exceeded.
func (f *finder) tell(m *guestv1.SearchMatch) error {
	if f.left == 0 {
		f.truncated = true
		return errStop
	}
	f.left--
	return f.send(m)
}

// lineFinder searches the lines of one file.
type lineFinder struct {
	*finder
	path string
	line int64 // number of the line at the piece's beginning, from 0

	recent  [][]byte               // the last lines, for the context before a match
	waiting []*guestv1.SearchMatch // waiting for the context after them, oldest first
}

// read searches a file in pieces of whole lines; a line that is longer than a piece
// is cut in two. A file with a zero byte is not text.
func (l *lineFinder) read(ctx context.Context, in io.Reader) error {
	rest := 0 // bytes of an unfinished line at the beginning of buf
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(in, l.buf[rest:cap(l.buf)])
		data := l.buf[:rest+n]
		if bytes.IndexByte(data[rest:], 0) >= 0 {
			return errNextFile
		}
		last := err != nil
		whole := len(data)
		if !last {
			if i := bytes.LastIndexByte(data, '\n'); i >= 0 && len(data)-i-1 <= maxLine {
				whole = i + 1
			}
		}
		if err := l.piece(data[:whole], last); err != nil {
			return err
		}
		if last {
			return nil // after a read error no more lines are searched
		}
		rest = copy(l.buf[:cap(l.buf)], data[whole:])
	}
}

// piece searches whole lines; only the last line of a piece may continue in the
// next piece. Without context, lines that do not match are skipped together.
func (l *lineFinder) piece(data []byte, last bool) error {
	for len(data) > 0 {
		if !l.perLine && l.context == 0 {
			at := l.re.FindIndex(data)
			if at == nil {
				l.line += int64(bytes.Count(data, []byte{'\n'}))
				return nil
			}
			// Continue at the beginning of the line where the match starts. The
			// match may extend into the next line, which is invalid: the line is
			// matched by itself below.
			start := bytes.LastIndexByte(data[:at[0]], '\n') + 1
			l.line += int64(bytes.Count(data[:start], []byte{'\n'}))
			data = data[start:]
		}
		text, after, ended := bytes.Cut(data, []byte{'\n'})
		data = after
		l.line++
		if err := l.one(bytes.TrimSuffix(text, []byte{'\r'})); err != nil {
			return err
		}
		if !ended && !last {
			l.line--
		}
	}
	return nil
}

// one matches one line.
func (l *lineFinder) one(text []byte) error {
	spans := l.re.FindAllIndex(text, maxSpans)
	if err := l.passContext(text, spans != nil); err != nil {
		return err
	}
	if spans == nil {
		return nil
	}
	m := &guestv1.SearchMatch{Path: valid(l.path), Line: l.line}
	if l.once {
		if err := l.tell(&guestv1.SearchMatch{Path: m.Path}); err != nil {
			return err
		}
		return errNextFile
	}
	m.Text, m.Cut = shorten(text)
	for _, s := range spans {
		if s[1] <= len(m.Text) {
			m.Spans = append(m.Spans, &guestv1.SearchSpan{Start: int32(s[0]), End: int32(s[1])})
		}
	}
	for i, before := range l.recent {
		if i < len(l.recent)-1 { // the last one is this line
			m.Before = append(m.Before, before)
		}
	}
	if l.context == 0 {
		return l.tell(m)
	}
	l.waiting = append(l.waiting, m)
	return nil
}

// passContext adds a line to the context of earlier matches and keeps it for later
// ones.
func (l *lineFinder) passContext(text []byte, match bool) error {
	if l.context == 0 {
		return nil
	}
	text, _ = shorten(text)
	for len(l.waiting) > 0 && len(l.waiting[0].After) == l.context {
		if err := l.tell(l.waiting[0]); err != nil {
			l.waiting = nil
			return err
		}
		l.waiting = l.waiting[1:]
	}
	for _, m := range l.waiting {
		m.After = append(m.After, text)
	}
	if len(l.recent) > l.context {
		l.recent = slices.Delete(l.recent, 0, 1)
	}
	l.recent = append(l.recent, text)
	return nil
}

// flush sends the matches at the end of a file.
func (l *lineFinder) flush() error {
	for _, m := range l.waiting {
		if err := l.tell(m); err != nil {
			return err
		}
	}
	return nil
}

// shorten copies the part of a line that is reported.
func shorten(text []byte) ([]byte, bool) {
	if len(text) > maxText {
		return bytes.Clone(text[:maxText]), true
	}
	return bytes.Clone(text), false
}
