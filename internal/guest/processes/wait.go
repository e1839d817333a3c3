package processes

import (
	"context"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"
	"unicode/utf8"
)

const (
	// maxLine bounds a line that is compared with an expression, in bytes; a longer
	// line counts as several.
	maxLine = 64 << 10
	// maxShownLine bounds the line of a Wait's answer, in bytes.
	maxShownLine = 4 << 10
	// firstTry and lastTry bound the pauses between probes of a port.
	firstTry, lastTry = 10 * time.Millisecond, 200 * time.Millisecond
	// tryTime bounds one probe.
	tryTime = 5 * time.Second
)

// Condition is the condition to wait for: one of its fields, or else the end.
type Condition struct {
	Port int // a TCP port accepts on the loopback address
	HTTP int // an HTTP request to this port is answered below 500
	Path string
	Log  *regexp.Regexp // a line of the output matches
}

// Outcome is the result of a wait.
type Outcome struct {
	Met        bool
	HTTPStatus int
	Line       string
	Offset     int64 // after Line
}

// Wait returns when the condition holds, when the Process has ended and the
// condition cannot hold any more, or when ctx ends.
func (p *Process) Wait(ctx context.Context, c Condition) Outcome {
	switch {
	case c.Log != nil:
		return p.waitLog(ctx, c.Log)
	case c.Port > 0:
		return p.try(ctx, func(ctx context.Context) Outcome { return Outcome{Met: accepts(ctx, c.Port)} })
	case c.HTTP > 0:
		return p.try(ctx, func(ctx context.Context) Outcome { return answers(ctx, c.HTTP, c.Path) })
	}
	select {
	case <-p.ended:
		return Outcome{Met: true}
	case <-ctx.Done():
		return Outcome{}
	}
}

// try polls while the Process runs: no event says that a port begins to listen.
func (p *Process) try(ctx context.Context, look func(context.Context) Outcome) Outcome {
	for pause := firstTry; ; pause = min(2*pause, lastTry) {
		over := p.over() // before the probe: a daemon may listen for it
		o := look(ctx)
		if o.Met || over || ctx.Err() != nil {
			return o
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-p.ended:
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			return o
		}
	}
}

// accepts reports whether a port of the loopback address, of either kind, takes
// connections.
func accepts(ctx context.Context, port int) bool {
	d := net.Dialer{Timeout: tryTime}
	for _, host := range []string{"127.0.0.1", "::1"} {
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			c.Close()
			return true
		}
	}
	return false
}

// prober sends one request over a new connection, and follows no redirect.
var prober = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       tryTime,
}

// answers sends a request to a port of the loopback address.
func answers(ctx context.Context, port int, path string) Outcome {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+":"+strconv.Itoa(port)+path, nil)
		if err != nil {
			return Outcome{}
		}
		req.Host = "localhost:" + strconv.Itoa(port)
		resp, err := prober.Do(req)
		if err == nil {
			resp.Body.Close()
			return Outcome{Met: resp.StatusCode < http.StatusInternalServerError, HTTPStatus: resp.StatusCode}
		}
	}
	return Outcome{}
}

// waitLog searches all output that is kept, then new output. A last line without a
// line break is compared too.
func (p *Process) waitLog(ctx context.Context, re *regexp.Regexp) Outcome {
	f := p.output.follow(0)
	defer f.leave()
	var lines [2]line
	for {
		over := p.over()
		pieces, _, more, err := f.take(maxLine)
		if err != nil {
			return Outcome{}
		}
		for _, got := range pieces {
			stream := 0
			if got.stderr {
				stream = 1
			}
			if o := lines[stream].match(re, got); o.Met {
				return o
			}
		}
		if more == nil {
			continue
		}
		for i := range lines {
			if o := lines[i].matchRest(re); o.Met {
				return o
			}
		}
		if over {
			return Outcome{}
		}
		select {
		case <-more:
		case <-p.ended:
		case <-ctx.Done():
			return Outcome{}
		}
	}
}

// line is the current, unfinished line of one stream.
type line struct {
	text   []byte
	end    int64 // offset after it
	looked bool  // it was compared in its current state
}

// match adds a piece and compares each line that it ends.
func (l *line) match(re *regexp.Regexp, got piece) Outcome {
	l.looked = false
	for i, b := range got.data {
		l.end = got.offset + int64(i) + 1
		if b != '\n' {
			l.text = append(l.text, b)
		}
		if b == '\n' || len(l.text) == maxLine {
			if o := l.compare(re); o.Met {
				return o
			}
			l.text = l.text[:0]
		}
	}
	return Outcome{}
}

// matchRest compares an unfinished line, once.
func (l *line) matchRest(re *regexp.Regexp) Outcome {
	if l.looked || len(l.text) == 0 {
		return Outcome{}
	}
	l.looked = true
	return l.compare(re)
}

func (l *line) compare(re *regexp.Regexp) Outcome {
	text := l.text
	if n := len(text); n > 0 && text[n-1] == '\r' {
		text = text[:n-1]
	}
	if !re.Match(text) {
		return Outcome{}
	}
	if len(text) > maxShownLine {
		text = text[:maxShownLine]
		for len(text) > 0 && !utf8.RuneStart(text[len(text)-1]) {
			text = text[:len(text)-1]
		}
	}
	return Outcome{Met: true, Line: string(text), Offset: l.end}
}
