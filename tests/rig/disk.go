package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Disk is a disk of its own below the data folder of a Machine: a loop device with ext4.
type Disk struct {
	image, device, folder string
}

// throttles are the files of cgroup v1 that bound the speed of a device for the processes
// of no other group, among them the kernel's, which write what was written to files.
var throttles = []string{
	"/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device",
	"/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device",
}

// PutOnDisk moves the data folder of a Machine that has not started to a Disk of a size. The
// host's disk has only what is written.
func (f *Fleet) PutOnDisk(t testing.TB, name string, bytes int64) *Disk {
	t.Helper()
	m := f.machines[name]
	d := &Disk{image: m.Data + ".img", folder: m.Data}
	kept := m.Data + ".kept"
	run := func(name string, args ...string) string {
		out, err := Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("a disk for %s: %s: %v: %s", m.Name, name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	file, err := os.Create(d.image)
	if err == nil {
		err = errors.Join(file.Truncate(bytes), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	m.disk = d
	run("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", d.image)
	d.device = run("losetup", "-f", "--show", d.image)
	if err := errors.Join(os.Rename(m.Data, kept), os.Mkdir(m.Data, 0o755)); err != nil {
		t.Fatal(err)
	}
	run("mount", d.device, m.Data)
	run("cp", "-a", kept+"/.", m.Data)
	if err := os.RemoveAll(kept); err != nil {
		t.Fatal(err)
	}
	return d
}

// remove removes the disk. Nothing may use it.
func (d *Disk) remove() error {
	var errs []error
	for _, args := range [][]string{{"umount", d.folder}, {"losetup", "-d", d.device}} {
		if args[len(args)-1] == "" {
			continue
		}
		if out, err := Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: %s", args, err, out))
		}
	}
	return errors.Join(append(errs, os.Remove(d.image))...)
}

// Fill leaves no free byte on the disk, until free is called.
func (d *Disk) Fill(t testing.TB) (free func()) {
	t.Helper()
	path := filepath.Join(d.folder, "filled")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	free = sync.OnceFunc(func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(free)
	end := int64(0)
	for part := int64(1 << 30); part >= 4096; {
		switch err := syscall.Fallocate(int(file.Fd()), 0, end, part); {
		case err == nil:
			end += part
		case errors.Is(err, syscall.ENOSPC):
			part /= 2
		case !errors.Is(err, syscall.EINTR):
			t.Fatalf("fill the disk of %s: %v", d.folder, err)
		}
	}
	return free
}

// Slow bounds the speed of the disk in bytes per second, until restore is called. The error
// says why this machine cannot.
func (d *Disk) Slow(t testing.TB, perSecond int64) (restore func(), err error) {
	t.Helper()
	set := func(speed int64) error {
		var st syscall.Stat_t
		if err := syscall.Stat(d.device, &st); err != nil {
			return err
		}
		rule := fmt.Sprintf("%d:%d %d", st.Rdev>>8&0xfff, st.Rdev&0xff, speed)
		for _, path := range throttles {
			if err := os.WriteFile(path, []byte(rule), 0o644); err != nil {
				return fmt.Errorf("the kernel slows no device down by cgroup v1: %w", err)
			}
		}
		return nil
	}
	if err := set(perSecond); err != nil {
		return nil, err
	}
	restore = sync.OnceFunc(func() {
		if err := set(0); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore, nil
}
