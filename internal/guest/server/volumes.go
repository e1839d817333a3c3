package server

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// VolumesArgument has this program be the volume server.
	VolumesArgument = "volumes"
	// remountAfter is how long after its end a volume server is replaced.
	remountAfter = time.Second
	// beginTime is how long a volume server may take to start.
	beginTime = 10 * time.Second
)

// VolumeMount is a Volume and where it is mounted.
type VolumeMount struct {
	ID, Path string
}

// mounted holds the mounted Volumes and their server.
type mounted struct {
	volumes []VolumeMount
	child   *Child // nil: no server
}

// mountVolumes mounts these Volumes and no others. Volumes that are mounted already
// stay, with their open files. That includes a restored Boot, whose volume server
// continues with the rest. The caller holds g.mu.
func (g *Guest) mountVolumes(volumes []VolumeMount) error {
	if slices.Equal(volumes, g.mounted.volumes) {
		return nil
	}
	g.unmountVolumes()
	child, err := g.serveVolumes(volumes)
	if err != nil {
		for _, v := range volumes {
			_ = unix.Unmount(v.Path, unix.MNT_DETACH)
		}
		return fmt.Errorf("mount volumes: %w", err)
	}
	g.mounted = mounted{volumes, child}
	if child == nil {
		return nil
	}
	volumeServer.Store(int64(child.PID))
	go func() {
		<-child.Exited
		volumeServer.CompareAndSwap(int64(child.PID), 0) // another process may get its number
		for again := true; again; {
			time.Sleep(remountAfter)
			again = g.remountVolumes(child, volumes)
		}
	}()
	return nil
}

// unmountVolumes ends the use of all mounted Volumes: programs that have files of
// them open get errors.
func (g *Guest) unmountVolumes() {
	was := g.mounted
	g.mounted = mounted{}
	if was.child != nil {
		if volumeServer.CompareAndSwap(int64(was.child.PID), 0) {
			_ = unix.Kill(was.child.PID, unix.SIGKILL)
		}
	}
	for _, v := range was.volumes {
		_ = unix.Unmount(v.Path, unix.MNT_DETACH)
	}
}

// remountVolumes mounts the Volumes of a killed volume server again, and reports
// whether to try once more: another program may have its port.
func (g *Guest) remountVolumes(was *Child, volumes []VolumeMount) (again bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mounted.child != was {
		return false
	}
	g.unmountVolumes()
	if g.mountVolumes(volumes) != nil {
		g.mounted.child = was
		return true
	}
	return false
}

// serveVolumes starts the server of Volumes and then mounts them. The server must
// have started before the first mount: a Go program reads the list of mounted file
// systems as it starts, gVisor then queries each of them, and the server would wait
// for itself. The caller holds g.mu.
func (g *Guest) serveVolumes(volumes []VolumeMount) (*Child, error) {
	if len(volumes) == 0 {
		return nil, nil
	}
	var open []*os.File
	defer func() {
		for _, f := range open {
			_ = f.Close()
		}
	}()
	begin, begins, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	open = append(open, begin, begins)
	ready, begun, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	open = append(open, ready, begun)
	listener, err := volumeListener()
	if err != nil {
		return nil, err
	}
	open = append(open, listener)
	files, args := []uintptr{begin.Fd(), begun.Fd(), begun.Fd(), listener.Fd()}, []string{"guest", VolumesArgument}
	devices := make([]*os.File, len(volumes))
	for i, v := range volumes {
		if devices[i], err = openVolume(v); err != nil {
			return nil, fmt.Errorf("at %s: %w", v.Path, err)
		}
		open, files, args = append(open, devices[i]), append(files, devices[i].Fd()), append(args, v.ID)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child, err := g.Reaper.Start(program, args, &syscall.ProcAttr{Dir: "/", Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return nil, err
	}
	_ = begun.Close() // so that the end of a server that could not start is noticed
	if err := ready.SetReadDeadline(time.Now().Add(beginTime)); err != nil {
		return nil, err
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		_ = unix.Kill(child.PID, unix.SIGKILL)
		return nil, fmt.Errorf("the server of the volumes does not begin: %w", err)
	}
	for i, v := range volumes {
		if err := mountVolume(int(devices[i].Fd()), v); err != nil { // with its pipe the server ends
			return nil, fmt.Errorf("at %s: %w", v.Path, err)
		}
	}
	_, err = begins.Write([]byte{1})
	return child, err
}

// volumeListener listens where the Node will connect.
func volumeListener() (*os.File, error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: int(sandbox.VolumePort)})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.File()
}

// openVolume opens the server's end of a file system that is not mounted yet.
func openVolume(v VolumeMount) (*os.File, error) {
	if err := os.MkdirAll(v.Path, 0o755); err != nil {
		return nil, err
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// mountVolume mounts a file system of which the descriptor is the server's end.
func mountVolume(fd int, v VolumeMount) error {
	// The kernel checks permissions, by the owners and modes that it gets.
	options := "fd=" + strconv.Itoa(fd) + ",rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
	return unix.Mount("volume", v.Path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options)
}
