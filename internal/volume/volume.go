// Package volume is the protocol for the files of Volumes, between the volume server
// inside a Boot and its Node: requests, framing, and the bounds of both. It runs over one
// TCP connection, which the Node opens, to sandbox.VolumePort of the Boot.
//
// A file is identified by its number in its Volume, never by a path. The number is
// permanent and never reused. So neither end has state that must survive: a saved Boot
// continues with another Node process, and the other way round.
package volume

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

const (
	// Version of the protocol. The Boot's end sends it first.
	Version = 1
	// MaxData bounds the bytes of one read or write, and of a part of a listing.
	MaxData = 256 << 10
	// MaxName bounds the name of a file, and MaxTarget the target of a symbolic link, in
	// bytes.
	MaxName   = 255
	MaxTarget = 4095
	// Parallel is how many requests of one connection run at a time.
	Parallel = 8
	// LeaseTime is how long, from the OpOpen request, no other Boot changes the bytes of a
	// leased file. Others' changes wait for it, or for OpRelease.
	LeaseTime = 8 * time.Millisecond
	// RootNode is the number of a Volume's root folder.
	RootNode = 1
)

// Server is the Node's end of the protocol: it serves one Boot the Volumes that it is
// bound with, and no others.
type Server interface {
	// Serve answers requests over a connection to the Boot, until that or ctx ends; it
	// then closes the connection. It serves one connection at a time. The Boot's open
	// files stay open for the next one.
	Serve(ctx context.Context, conn net.Conn) error
	// Close releases the Boot's open files. It is called when no connection is served.
	Close()
}

// Op is an operation.
type Op uint8

// Operations. Each uses the fields of Request in its comment, and Node unless it says
// otherwise.
const (
	OpHello    Op = iota + 1 // Size: Version; Data: the IDs of the Boot's Volumes, joined by spaces; no Node
	OpLookup                 // Name in a folder
	OpGetAttr                //
	OpSetAttr                // Mode, UID, GID, Offset (the length), Accessed, Modified as Set selects
	OpReadLink               // the answer's Data
	OpSymlink                // Name in a folder; Data: the target; UID, GID
	OpCreate                 // a regular file Name in a folder; Mode, UID, GID; FlagExclusive, FlagHold
	OpMkdir                  // Name in a folder; Mode, UID, GID
	OpUnlink                 // Name in a folder
	OpRmdir                  // Name in a folder
	OpRename                 // Name in a folder to Data in the folder Other; FlagExclusive
	OpLink                   // Name in a folder becomes another name of Other
	OpHold                   // the file exists while it is held, even without a name
	OpRelease                // undoes one OpHold; Other: the lease of OpOpen to release, or 0
	OpRead                   // Size bytes at Offset
	OpWrite                  // Data at Offset; FlagAppend: at the end
	OpSync                   // flushes to the disk
	OpList                   // a folder's names after Name, in order; the answer's Data, see AppendEntry, and Count: 1 if there are more
	OpStatFS                 // the answer's Count: bytes in all; Free: bytes free; Files: free files; no Node
	OpAllocate               // the file gets at least Offset bytes, and the Volume has room for them
	OpOpen                   // OpHold; also returns a file of at most Size bytes if it gets a lease for LeaseTime: the answer's Count is the lease's number, or 0; Data and Attr
	lastOp     = OpOpen
)

// Flags of a Request.
const (
	FlagExclusive uint32 = 1 << iota // an existing entry is an error
	FlagAppend
	FlagHold // as OpHold does
)

// Set bits of OpSetAttr.
const (
	SetMode uint32 = 1 << iota
	SetUID
	SetGID
	SetSize
	SetAccessed
	SetModified
	SetAccessedNow
	SetModifiedNow
)

// Changes reports whether op must not run twice.
func (op Op) Changes() bool {
	switch op {
	case OpSetAttr, OpSymlink, OpCreate, OpMkdir, OpUnlink, OpRmdir, OpRename, OpLink, OpHold, OpRelease, OpWrite, OpAllocate, OpOpen:
		return true
	}
	return false
}

// Request asks for one operation on a mounted Volume.
type Request struct {
	Tag                uint64 // repeated in the answer; a retry has the same
	Op                 Op
	Mount              uint8 // index of the Volume in OpHello
	Node, Other        uint64
	Offset             int64
	Size, Flags, Set   uint32
	Mode, UID, GID     uint32
	Accessed, Modified int64 // nanoseconds since 1970
	Name               string
	Data               []byte
}

// Attr is the attributes of a file.
type Attr struct {
	Node                        uint64
	Mode                        uint32 // with the type, as in stat(2)
	UID, GID, Links             uint32
	Size, Blocks                int64 // bytes; units of 512 bytes
	Accessed, Modified, Changed int64 // nanoseconds since 1970
}

// Answer answers a Request.
type Answer struct {
	Tag                uint64
	Err                syscall.Errno // 0: success
	Attr               Attr          // of the file, if there is one
	Count, Free, Files int64
	Data               []byte
}

const (
	requestHead = 8 + 1 + 1 + 8 + 8 + 8 + 4*6 + 8 + 8 + 2
	answerHead  = 8 + 4 + attrBytes + 8*3
	attrBytes   = 8 + 4*4 + 8*5
	// Longest is the maximum size of a frame, without its length prefix.
	Longest = requestHead + MaxName + MaxData
)

// errFrame reports an invalid frame of this protocol.
var errFrame = errors.New("this is not a frame of the volume protocol")

var order = binary.LittleEndian

// RequestBytes is the size of a request's frame.
func RequestBytes(r *Request) int { return 4 + requestHead + len(r.Name) + len(r.Data) }

// AppendRequest appends a frame. The caller checks the bounds of Name and Data.
func AppendRequest(b []byte, r *Request) []byte {
	b = order.AppendUint32(b, uint32(requestHead+len(r.Name)+len(r.Data)))
	b = order.AppendUint64(b, r.Tag)
	b = append(b, byte(r.Op), r.Mount)
	b = order.AppendUint64(b, r.Node)
	b = order.AppendUint64(b, r.Other)
	b = order.AppendUint64(b, uint64(r.Offset))
	for _, v := range [...]uint32{r.Size, r.Flags, r.Set, r.Mode, r.UID, r.GID} {
		b = order.AppendUint32(b, v)
	}
	b = order.AppendUint64(b, uint64(r.Accessed))
	b = order.AppendUint64(b, uint64(r.Modified))
	b = order.AppendUint16(b, uint16(len(r.Name)))
	b = append(b, r.Name...)
	return append(b, r.Data...)
}

// DecodeRequest decodes a frame without its length prefix. Data aliases the frame.
func DecodeRequest(frame []byte) (r Request, err error) {
	if len(frame) < requestHead || len(frame) > Longest {
		return r, errFrame
	}
	d := decoder{frame}
	r.Tag, r.Op, r.Mount = d.u64(), Op(d.u8()), d.u8()
	r.Node, r.Other, r.Offset = d.u64(), d.u64(), d.i64()
	for _, v := range [...]*uint32{&r.Size, &r.Flags, &r.Set, &r.Mode, &r.UID, &r.GID} {
		*v = d.u32()
	}
	r.Accessed, r.Modified = d.i64(), d.i64()
	name := int(d.u16())
	switch {
	case r.Op < OpHello || r.Op > lastOp:
		return r, fmt.Errorf("%w: operation %d", errFrame, r.Op)
	case name > MaxName || name > len(d.rest):
		return r, fmt.Errorf("%w: a name of %d bytes", errFrame, name)
	case len(d.rest)-name > MaxData || r.Size > MaxData:
		return r, fmt.Errorf("%w: more than %d bytes at once", errFrame, MaxData)
	}
	r.Name, r.Data = string(d.rest[:name]), d.rest[name:]
	return r, nil
}

// RouteBytes is the size of the beginning of a request's frame, without its length prefix,
// that RouteOf reads.
const RouteBytes = TagBytes + 1 + 1

// TagBytes is the size of the tag, with which the frames of requests and answers begin.
const TagBytes = 8

// TagOf returns the tag of a request or an answer from the beginning of its frame.
func TagOf(frame []byte) uint64 { return order.Uint64(frame) }

// RouteOf returns the tag and the mount of a request from the beginning of its frame, to
// pass the frame on without decoding it.
func RouteOf(frame []byte) (tag uint64, mount int) {
	return TagOf(frame), int(frame[RouteBytes-1])
}

// AppendAnswer appends a frame. The caller checks the bound of Data.
func AppendAnswer(b []byte, a *Answer) []byte {
	b = order.AppendUint32(b, uint32(answerHead+len(a.Data)))
	b = order.AppendUint64(b, a.Tag)
	b = order.AppendUint32(b, uint32(a.Err))
	b = order.AppendUint64(b, a.Attr.Node)
	for _, v := range [...]uint32{a.Attr.Mode, a.Attr.UID, a.Attr.GID, a.Attr.Links} {
		b = order.AppendUint32(b, v)
	}
	for _, v := range [...]int64{a.Attr.Size, a.Attr.Blocks, a.Attr.Accessed, a.Attr.Modified, a.Attr.Changed, a.Count, a.Free, a.Files} {
		b = order.AppendUint64(b, uint64(v))
	}
	return append(b, a.Data...)
}

// AnswerBytes is the size of an answer's frame before its Data.
const AnswerBytes = 4 + answerHead

// FrameAnswer makes a frame in b, which already holds the answer's Data at AnswerBytes.
func FrameAnswer(b []byte, a *Answer) []byte {
	n := len(a.Data)
	head := *a
	head.Data = nil
	AppendAnswer(b[:0], &head)
	order.PutUint32(b, uint32(answerHead+n))
	return b[:AnswerBytes+n]
}

// ReadAnswer reads an answer's frame. Its Data goes to the buffer that into returns for
// its tag, or to a new one if that or into is nil. Data that does not fit is an error.
func ReadAnswer(r *bufio.Reader, into func(tag uint64) []byte) (Answer, error) {
	var buf [AnswerBytes]byte
	if _, err := io.ReadFull(r, buf[:]); err != nil {
		return Answer{}, err
	}
	n := int64(order.Uint32(buf[:])) - answerHead
	if n < 0 || n > MaxData {
		return Answer{}, fmt.Errorf("%w: an answer with %d bytes", errFrame, n)
	}
	a := decodeAnswerHead(buf[4:])
	var data []byte
	if into != nil {
		data = into(a.Tag)
	}
	switch {
	case data == nil:
		data = make([]byte, n)
	case int64(len(data)) < n:
		return a, fmt.Errorf("%w: an answer with %d bytes, where %d were asked for", errFrame, n, len(data))
	}
	a.Data = data[:n]
	_, err := io.ReadFull(r, a.Data)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return a, err
}

func decodeAnswerHead(frame []byte) (a Answer) {
	d := decoder{frame}
	a.Tag, a.Err = d.u64(), syscall.Errno(d.u32())
	a.Attr.Node = d.u64()
	for _, v := range [...]*uint32{&a.Attr.Mode, &a.Attr.UID, &a.Attr.GID, &a.Attr.Links} {
		*v = d.u32()
	}
	for _, v := range [...]*int64{&a.Attr.Size, &a.Attr.Blocks, &a.Attr.Accessed, &a.Attr.Modified, &a.Attr.Changed, &a.Count, &a.Free, &a.Files} {
		*v = d.i64()
	}
	return a
}

// ReadFrame reads a frame into buf if it fits, or a new buffer, and returns it without
// its length prefix. It reads nothing of a frame that is too long.
func ReadFrame(r *bufio.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := order.Uint32(head[:])
	if n > Longest {
		return nil, fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	_, err := io.ReadFull(r, buf)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return buf, err
}

// Entry is a file in the listing of a folder.
type Entry struct {
	Node uint64
	Type uint8 // as d_type of readdir(3)
	Name string
}

const entryHead = 8 + 1 + 2

// AppendEntry appends an entry to the Data of a listing; false: it would exceed MaxData.
func AppendEntry(b []byte, e Entry) ([]byte, bool) {
	if len(b)+entryHead+len(e.Name) > MaxData {
		return b, false
	}
	b = order.AppendUint64(b, e.Node)
	b = append(b, e.Type)
	b = order.AppendUint16(b, uint16(len(e.Name)))
	return append(b, e.Name...), true
}

// DecodeEntries reads the Data of a listing.
func DecodeEntries(b []byte) ([]Entry, error) {
	var all []Entry
	for len(b) > 0 {
		if len(b) < entryHead {
			return nil, errFrame
		}
		d := decoder{b}
		e := Entry{Node: d.u64(), Type: d.u8()}
		n := int(d.u16())
		if n == 0 || n > MaxName || n > len(d.rest) {
			return nil, errFrame
		}
		e.Name, b = string(d.rest[:n]), d.rest[n:]
		all = append(all, e)
	}
	return all, nil
}

// decoder reads a frame whose length was checked.
type decoder struct{ rest []byte }

func (d *decoder) u8() uint8 {
	v := d.rest[0]
	d.rest = d.rest[1:]
	return v
}

func (d *decoder) u16() uint16 {
	v := order.Uint16(d.rest)
	d.rest = d.rest[2:]
	return v
}

func (d *decoder) u32() uint32 {
	v := order.Uint32(d.rest)
	d.rest = d.rest[4:]
	return v
}

func (d *decoder) u64() uint64 {
	v := order.Uint64(d.rest)
	d.rest = d.rest[8:]
	return v
}

func (d *decoder) i64() int64 { return int64(d.u64()) }
