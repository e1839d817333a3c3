package volume

import (
	"bufio"
	"bytes"
	"math"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

var (
	fullRequest = Request{
		Tag: 1, Op: OpRename, Mount: 7, Node: math.MaxUint64, Other: 3, Offset: math.MaxInt64, Size: MaxData, Flags: 5, Set: 6,
		Mode: 0o100644, UID: 8, GID: 9, Accessed: -1, Modified: 11, Name: "old", Data: []byte("new"),
	}
	fullAnswer = Answer{
		Tag: 1, Err: syscall.ENOSPC, Count: 2, Free: 3, Files: 4, Data: []byte("data"),
		Attr: Attr{Node: 5, Mode: 6, UID: 7, GID: 8, Links: 9, Size: 10, Blocks: 11, Accessed: 12, Modified: -13, Changed: 14},
	}
)

func TestRoundTrip(t *testing.T) {
	stream := AppendAnswer(AppendRequest(nil, &fullRequest), &fullAnswer)
	r := bufio.NewReader(bytes.NewReader(stream))
	frame, err := ReadFrame(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeRequest(frame); err != nil || !reflect.DeepEqual(got, fullRequest) {
		t.Errorf("the request came as %+v, %v", got, err)
	}
	if got, err := ReadAnswer(r, nil); err != nil || !reflect.DeepEqual(got, fullAnswer) {
		t.Errorf("the answer came as %+v, %v", got, err)
	}
}

// An answer's Data goes where there is room for it.
func TestReadAnswer(t *testing.T) {
	frame := AppendAnswer(nil, &fullAnswer)
	inPlace := append(make([]byte, AnswerBytes), fullAnswer.Data...)
	a := fullAnswer
	a.Data = inPlace[AnswerBytes:]
	if got := FrameAnswer(inPlace, &a); !bytes.Equal(got, frame) {
		t.Errorf("the frame in place is %x, want %x", got, frame)
	}
	room := make([]byte, 10)
	for name, tt := range map[string]struct {
		frame []byte
		into  []byte
		fails bool
	}{
		"memory of its own": {frame, nil, false},
		"room":              {frame, room, false},
		"too little room":   {frame, make([]byte, 3), true},
		"a part":            {frame[:len(frame)-1], room, true},
		"no head":           {frame[:20], room, true},
		"too short":         {append([]byte{1, 0, 0, 0}, frame[4:]...), room, true},
		"too long":          {append([]byte{0xff, 0xff, 0xff, 0xff}, frame[4:]...), room, true},
	} {
		got, err := ReadAnswer(bufio.NewReader(bytes.NewReader(tt.frame)), func(tag uint64) []byte {
			if tag != fullAnswer.Tag {
				t.Errorf("%s: the tag is %d", name, tag)
			}
			return tt.into
		})
		if (err != nil) != tt.fails || err == nil && !reflect.DeepEqual(got, fullAnswer) || err == nil && tt.into != nil && &got.Data[0] != &tt.into[0] {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := AppendRequest(nil, &fullRequest)[4:]
	change := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	for name, frame := range map[string][]byte{
		"nothing":            nil,
		"a part":             good[:requestHead-1],
		"no operation":       change(8, 0),
		"unknown operation":  change(8, byte(lastOp)+1),
		"a name beyond":      change(requestHead-2, 200),
		"too long a name":    change(requestHead-1, 2),
		"too much to read":   change(8+1+1+24+2, 0xff),
		"too much to write":  append(bytes.Clone(good), make([]byte, MaxData)...),
		"longer than frames": make([]byte, Longest+1),
	} {
		if r, err := DecodeRequest(frame); err == nil {
			t.Errorf("%s: decoded as %+v", name, r)
		}
	}
	if _, err := ReadFrame(bufio.NewReader(strings.NewReader("\xff\xff\xff\x7f")), nil); err == nil {
		t.Error("a frame of 2 GiB was read")
	}
	if _, err := ReadFrame(bufio.NewReader(strings.NewReader("\x08\x00\x00\x00abc")), nil); err == nil {
		t.Error("half a frame was read")
	}
}

func TestEntries(t *testing.T) {
	want := []Entry{{1, 4, "a"}, {2, 8, strings.Repeat("n", MaxName)}}
	var b []byte
	for _, e := range want {
		b, _ = AppendEntry(b, e)
	}
	if got, err := DecodeEntries(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for ok := true; ok; {
		if b, ok = AppendEntry(b, want[1]); len(b) > MaxData {
			t.Fatalf("a listing has %d bytes", len(b))
		}
	}
}

func FuzzVolumeRequest(f *testing.F) {
	f.Add(AppendRequest(nil, &fullRequest)[4:])
	f.Fuzz(func(t *testing.T, frame []byte) {
		r, err := DecodeRequest(frame)
		if err != nil {
			return
		}
		if again := AppendRequest(nil, &r)[4:]; !bytes.Equal(again, frame) {
			t.Errorf("%x became %x", frame, again)
		}
	})
}

func FuzzVolumeAnswer(f *testing.F) {
	f.Add(AppendAnswer(nil, &fullAnswer))
	entries, _ := AppendEntry(nil, Entry{1, 4, "a"})
	f.Add(AppendAnswer(nil, &Answer{Data: entries}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		a, err := ReadAnswer(bufio.NewReader(bytes.NewReader(frame)), nil)
		if err != nil {
			return
		}
		if again := AppendAnswer(nil, &a); !bytes.HasPrefix(frame, again) {
			t.Errorf("%x became %x", frame, again)
		}
		if all, err := DecodeEntries(a.Data); err == nil {
			var b []byte
			for _, e := range all {
				b, _ = AppendEntry(b, e)
			}
			if !bytes.Equal(b, a.Data) {
				t.Errorf("the entries %x became %x", a.Data, b)
			}
		}
	})
}
