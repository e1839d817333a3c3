// Command guest stands in for the Guest in tests of the sentry host: it serves
// HTTP on port 80 and starts copies of itself that use memory.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

func main() {
	if len(os.Args) > 2 {
		bomb(os.Args[2])
		return
	}
	var mu sync.Mutex
	children := map[int]*exec.Cmd{}
	http.HandleFunc("/ping", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "pong") })
	http.HandleFunc("/bomb", func(w http.ResponseWriter, r *http.Request) {
		cmd := exec.Command("/.cloud-sandbox/guest", "bomb", r.FormValue("mb"))
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
	http.HandleFunc("/kill", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for pid, cmd := range children {
			cmd.Process.Kill()
			delete(children, pid)
		}
		fmt.Fprint(w, "killed")
	})
	http.HandleFunc("/write", func(w http.ResponseWriter, r *http.Request) {
		mb, _ := strconv.Atoi(r.FormValue("mb"))
		f, err := os.Create("/big")
		b := make([]byte, 1<<20)
		for i := 0; i < mb && err == nil; i++ {
			_, err = f.Write(b)
		}
		f.Close()
		fmt.Fprint(w, err)
	})
	http.ListenAndServe(":80", nil)
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
