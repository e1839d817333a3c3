// Command program has goroutines, tickers, a map, and a server and a client that
// stay connected.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

var ticks [8]atomic.Int64

func tick(i int) {
	for range time.Tick(20 * time.Millisecond) {
		ticks[i].Add(1)
	}
}

func echo(l net.Listener) {
	conn, err := l.Accept()
	if err == nil {
		_, err = io.Copy(conn, conn)
	}
	fmt.Println("bad: the server ended:", err)
}

func check(peer net.Conn, squares map[int]int, n byte) error {
	for i := range ticks {
		before, since := ticks[i].Load(), time.Now()
		for ticks[i].Load() < before+3 {
			if time.Since(since) > 30*time.Second {
				return fmt.Errorf("ticker %d stands still", i)
			}
			time.Sleep(time.Millisecond)
		}
	}
	var answer [1]byte
	if _, err := peer.Write([]byte{n}); err != nil {
		return err
	}
	if _, err := io.ReadFull(peer, answer[:]); err != nil || answer[0] != n {
		return fmt.Errorf("the server says %d, %v", answer[0], err)
	}
	runtime.GC()
	for k, v := range squares {
		if v != k*k {
			return fmt.Errorf("the square of %d became %d", k, v)
		}
	}
	return nil
}

func main() {
	squares := map[int]int{}
	for i := range 100_000 {
		squares[i] = i * i
	}
	for i := range ticks {
		go tick(i)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println("bad:", err)
		return
	}
	go echo(l)
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		fmt.Println("bad:", err)
		return
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for n := byte(1); lines.Scan(); n++ {
		if err := check(peer, squares, n); err != nil {
			fmt.Printf("bad %d: %v\n", n, err)
		} else {
			fmt.Printf("ok %d\n", n)
		}
	}
}
