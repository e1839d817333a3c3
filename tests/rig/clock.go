package rig

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Clock is the wall clock of one running process, which a test can set. The machine's
// clock and the process's monotonic clocks stay as they are.
//
// Programs read the time through the vDSO, code of the kernel that each process has in its
// memory. A Clock replaces the function there by one that asks the kernel and adds an offset.
// A Go program has no other way to the time, so it needs no switch for tests.
type Clock struct {
	memory *os.File // of the process
	offset int64    // the address of the offset
}

// ErrClock is the error of a machine on which no process's clock can be set.
var ErrClock = errors.New("the clock of a process can be set on amd64 only")

// clockCode is the replacement of clock_gettime of the vDSO on amd64.
var clockCode = []byte{
	0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi: another clock than CLOCK_REALTIME?
	0x75, 10, // jne to the return
	0x48, 0x8b, 0x0d, 0, 0, 0, 0, // mov rcx, [rip + the offset's distance]
	0x48, 0x01, 0x0e, // add [rsi], rcx: seconds
	0xc3, // ret
}

const (
	clockDistance = 14 // of the offset's distance in clockCode
	clockAfter    = 18 // of the instruction behind it
)

// ClockOf takes over the clock of a process. It stands still for some milliseconds.
func ClockOf(pid int) (*Clock, error) {
	if runtime.GOARCH != "amd64" {
		return nil, ErrClock
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	c := &Clock{memory: memory}
	if err := c.replace(pid); err != nil {
		return nil, errors.Join(fmt.Errorf("take over the clock of the process %d: %w", pid, err), memory.Close())
	}
	return c, nil
}

func (c *Clock) replace(pid int) error {
	from, to, err := vdsoOf(pid)
	if err != nil {
		return err
	}
	image := make([]byte, to-from)
	if _, err := io.ReadFull(io.NewSectionReader(c.memory, from, to-from), image); err != nil {
		return err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	for _, s := range symbols {
		if s.Name != "__vdso_clock_gettime" {
			continue
		}
		start := from + int64(s.Value)
		c.offset = (start + int64(len(clockCode)) + 7) / 8 * 8 // aligned: it is written and read as a whole
		if int(s.Size) < len(clockCode)+16 {
			return fmt.Errorf("its function has only %d bytes", s.Size)
		}
		code := bytes.Clone(clockCode)
		binary.LittleEndian.PutUint32(code[clockDistance:], uint32(c.offset-start-clockAfter))
		return whileOutside(pid, from, to, func() error {
			return errors.Join(c.Set(0), c.write(code, start))
		})
	}
	return errors.New("its vDSO has no clock_gettime")
}

// Set sets the clock to its real time and an offset, in whole seconds.
func (c *Clock) Set(offset time.Duration) error {
	return c.write(binary.LittleEndian.AppendUint64(nil, uint64(offset/time.Second)), c.offset)
}

func (c *Clock) write(raw []byte, at int64) error {
	_, err := c.memory.WriteAt(raw, at)
	return err
}

// Close sets the real time. It does nothing if the process has ended.
func (c *Clock) Close() error {
	_ = c.Set(0) // the process may have ended
	return c.memory.Close()
}

// vdsoOf returns the addresses of the vDSO of a process.
func vdsoOf(pid int) (from, to int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &from, &to)
			return from, to, err
		}
	}
	return 0, 0, errors.New("it has no vDSO")
}

// whileOutside calls f while a process is stopped with no thread between two addresses.
func whileOutside(pid int, from, to int64, f func() error) error {
	for range 100 {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		done, err := outside(pid, from, to)
		if done && err == nil {
			err = f()
		}
		if again := syscall.Kill(pid, syscall.SIGCONT); again != nil {
			return again
		}
		if done || err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("its threads always read the time")
}

// outside waits until all threads of a process have stopped, and reports whether none is
// between two addresses.
func outside(pid int, from, to int64) (bool, error) {
	for end := time.Now().Add(Patience); ; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false, errors.New("its threads do not stop")
		}
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		if err != nil || len(tasks) == 0 {
			return false, errors.Join(err, os.ErrProcessDone)
		}
		running, inside := false, false
		for _, task := range tasks {
			raw, err := os.ReadFile(task)
			if err != nil {
				continue // the thread has ended
			}
			fields := strings.Fields(string(raw))
			if len(fields) < 3 { // "running"
				running = true
				continue
			}
			at, err := strconv.ParseInt(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
			inside = inside || err == nil && from <= at && at < to
		}
		if !running {
			return !inside, nil
		}
	}
}
