package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a pseudo terminal. The keyboard end reads what a program writes to its screen.
func openTerminal(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("cannot open a terminal: %v", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skipf("cannot unlock a terminal: %v", err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skipf("cannot name a terminal: %v", err)
	}
	screen, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("cannot open the other end: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 160}); err != nil {
		t.Fatal(err)
	}
	return keyboard, screen
}

// TestServeOnATerminal: the first line is the frame with one link that signs in, the log comes after it, and ctrl-c
// prints a message.
func TestServeOnATerminal(t *testing.T) {
	keyboard, screen := openTerminal(t)
	t.Setenv("SSH_CONNECTION", "a b c d") // no browser of the machine that runs the test
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	dir := filepath.Join(t.TempDir(), "me")
	ended := make(chan int, 1)
	go func() {
		args := []string{"serve", "--data", dir, "--listen", "127.0.0.1:0", "--name", "Sarah"}
		ended <- run(ctx, args, strings.NewReader(""), screen, screen)
	}()
	lines := make(chan string, 100)
	go func() {
		for s := bufio.NewScanner(io.Reader(keyboard)); s.Scan(); {
			lines <- strings.TrimRight(s.Text(), "\r")
		}
	}()
	read := func(until string) (seen []string) {
		late := time.After(time.Minute)
		for {
			select {
			case l := <-lines:
				if seen = append(seen, l); strings.Contains(l, until) {
					return seen
				}
			case <-late:
				t.Fatalf("no %q on the screen:\n%s", until, strings.Join(seen, "\n"))
			}
		}
	}
	box := read("╰")
	text := strings.Join(box, "\n")
	if !strings.HasPrefix(box[0], "╭") || !strings.Contains(box[1], "\x1b[1;36mSarah is running, ctrl-c stops it") {
		t.Errorf("the frame is not the first output:\n%s", text)
	}
	if links := regexp.MustCompile(`http://127\.0\.0\.1:\d+/owner/page/login#[A-Z2-7]{5}-[A-Z2-7]{5} `).FindAllString(text, -1); len(links) != 1 {
		t.Errorf("%d links that sign in:\n%s", len(links), text)
	}
	stop()
	read("stopping")
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
}
