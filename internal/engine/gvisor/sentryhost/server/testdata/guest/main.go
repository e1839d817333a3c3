// Command guest stands in for the Guest in tests of the sentry host: it serves
// HTTP on port 80 and starts copies of itself that use memory.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// nothing is the argument of a program that ends at once.
const nothing = "nothing"

func main() {
	if len(os.Args) == 2 {
		if os.Args[1] == "stops" {
			stops()
		}
		return
	}
	if len(os.Args) > 2 {
		if os.Args[1] == "forks" {
			go forks()
		}
		bomb(os.Args[2])
		return
	}
	http.HandleFunc("/ping", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "pong") })
	handleSignals()
	handleProcesses()
	handleFiles()
	http.ListenAndServe(":80", nil)
}

// handleSignals serves the requests about signals.
func handleSignals() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR1)
	http.HandleFunc("/told", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case s := <-told:
			fmt.Fprint(w, s)
		case <-time.After(time.Minute): // the runtime may pass a signal on late
			fmt.Fprint(w, "nothing")
		}
	})
}

// handleProcesses serves the requests that start and end copies of this program.
func handleProcesses() {
	var mu sync.Mutex
	children := map[int]*exec.Cmd{}
	http.HandleFunc("/bomb", func(w http.ResponseWriter, r *http.Request) {
		kind := "bomb"
		if r.FormValue("forks") != "" {
			kind = "forks"
		}
		cmd := exec.Command("/.cloud-sandbox/guest", kind, r.FormValue("mb"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		mu.Lock()
		children[cmd.Process.Pid] = cmd
		mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		if r.FormValue("wait") != "" {
			fmt.Fprint(w, <-done)
			return
		}
		fmt.Fprint(w, cmd.Process.Pid)
	})
	http.HandleFunc("/starts", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("stopped") != "" {
			if err := exec.Command("/.cloud-sandbox/guest", "stops").Start(); err != nil {
				http.Error(w, err.Error(), 500)
				return
			}
		}
		runtime.GOMAXPROCS(1) // like the real Guest: one waiting thread blocks all
		go starts()
		fmt.Fprint(w, "begun")
	})
	http.HandleFunc("/silent", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, silence()) })
	http.HandleFunc("/alive", func(w http.ResponseWriter, r *http.Request) {
		pid, _ := strconv.Atoi(r.FormValue("pid"))
		fmt.Fprint(w, syscall.Kill(pid, 0) == nil)
	})
	http.HandleFunc("/eat", func(w http.ResponseWriter, r *http.Request) { bomb(r.FormValue("mb")) })
	http.HandleFunc("/kill", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for pid, cmd := range children {
			cmd.Process.Kill()
			delete(children, pid)
		}
		fmt.Fprint(w, "killed")
	})
}

// handleFiles serves the requests that make and count files and descriptors.
func handleFiles() {
	http.HandleFunc("/write", func(w http.ResponseWriter, r *http.Request) {
		mb, _ := strconv.Atoi(r.FormValue("mb"))
		f, err := os.Create("/big")
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i >> 8)
		}
		if hole, _ := strconv.ParseInt(r.FormValue("hole"), 10, 64); hole > 0 && err == nil {
			_, err = f.Seek(hole<<20, 0)
		}
		for i := 0; i < mb && err == nil; i++ {
			_, err = f.Write(b)
		}
		f.Close()
		fmt.Fprint(w, err)
	})
	http.HandleFunc("/files", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		fmt.Fprint(w, makeFiles(n))
	})
	http.HandleFunc("/sockets", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		fmt.Fprint(w, openSockets(n))
	})
	http.HandleFunc("/count", func(w http.ResponseWriter, _ *http.Request) {
		files, _ := filepath.Glob("/tmp/many/*/*")
		open, _ := os.ReadDir("/proc/self/fd")
		fmt.Fprintf(w, "%d files, %t", len(files), len(open) > 1000)
	})
	http.HandleFunc("/remove", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, os.RemoveAll("/tmp/many")) })
}

// makeFiles makes n empty files, a thousand in a folder.
func makeFiles(n int) error {
	for i := range n {
		dir := fmt.Sprintf("/tmp/many/%d", i/1000)
		if i%1000 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := syscall.Mknod(fmt.Sprintf("%s/%d", dir, i), syscall.S_IFREG|0o644, 0); err != nil {
			return err
		}
	}
	return nil
}

// openSockets opens n sockets and keeps them.
func openSockets(n int) error {
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(n) + 100, Max: 1 << 20}); err != nil {
		return err
	}
	for range n {
		if _, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0); err != nil {
			return err
		}
	}
	return nil
}

// forks starts programs without end, each of which takes some memory.
func forks() {
	for {
		_ = exec.Command("/.cloud-sandbox/guest", "forks", "8").Start()
	}
}

// starts starts programs without end, one after the other. Each has so many
// descriptors to close between fork and exec that this takes a while.
func starts() {
	const closes = 10000
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 2 * closes, Max: 2 * closes})
	files := make([]uintptr, closes)
	for i := range files {
		files[i] = ^uintptr(0)
	}
	for err == nil {
		var pid int
		pid, err = syscall.ForkExec("/.cloud-sandbox/guest", []string{"guest", nothing}, &syscall.ProcAttr{Files: files})
		if err == nil {
			_, err = syscall.Wait4(pid, nil, 0, nil)
		}
		time.Sleep(time.Millisecond)
	}
	panic(err)
}

// silence puts a file over the state of this program that cannot be read to its end.
func silence() error {
	if err := syscall.Mount("none", "/proc", "tmpfs", 0, ""); err != nil {
		return err
	}
	if err := os.Mkdir("/proc/1", 0o755); err != nil {
		return err
	}
	return syscall.Mkfifo("/proc/1/stat", 0o644)
}

// stops stops the first program that it meets before its exec.
func stops() {
	for {
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range all {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if pid <= 1 || pid == os.Getpid() || syscall.Kill(pid, syscall.SIGSTOP) != nil || !stands(dir) {
				continue
			}
			if args, _ := os.ReadFile(dir + "/cmdline"); !strings.Contains(string(args), nothing) {
				time.Sleep(time.Hour)
			}
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// stands waits until a process that was sent SIGSTOP is stopped; false: it has ended.
func stands(dir string) bool {
	for ; ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(dir + "/stat")
		_, fields, _ := strings.Cut(string(stat), ") ")
		switch {
		case err != nil || strings.HasPrefix(fields, "Z") || strings.HasPrefix(fields, "X"):
			return false
		case strings.HasPrefix(fields, "T"):
			return true
		}
	}
}

func bomb(mb string) {
	n, _ := strconv.Atoi(mb)
	var keep [][]byte
	for range n {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		keep = append(keep, b)
	}
	time.Sleep(time.Hour)
	_ = keep
}
