package terminal

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"github.com/clipperhouse/displaywidth"
)

// Frame writes a title and rows of a label and a value in a frame. It cleans the title and the values. On a terminal
// that is too narrow it leaves the frame out, because a link that wraps inside a frame cannot be clicked.
func (u *UI) Frame(title string, rows [][2]string) {
	labelWidth := 0
	for _, r := range rows {
		labelWidth = max(labelWidth, displaywidth.String(r[0]))
	}
	lines, width := []string{Clean(title)}, displaywidth.String(Clean(title))
	for _, r := range rows {
		line := r[0] + strings.Repeat(" ", labelWidth-displaywidth.String(r[0])+2) + Clean(r[1])
		lines, width = append(lines, line), max(width, displaywidth.String(line))
	}
	side, end := "│ ", " │"
	framed := width+4 <= cmp.Or(u.columns(), 80)
	if framed {
		u.Print("╭%s╮", strings.Repeat("─", width+2))
	} else {
		side, end = "", ""
	}
	for i, line := range lines {
		fill := strings.Repeat(" ", width-displaywidth.String(line))
		if i == 0 {
			line = u.paint("1;36", line)
		}
		u.Print("%s", strings.TrimRight(side+line+fill+end, " "))
	}
	if framed {
		u.Print("╰%s╯", strings.Repeat("─", width+2))
	}
}

// maxHeld bounds, in bytes, what a [Held] keeps.
const maxHeld = 64 << 10

// Held is a writer that keeps its input until Release, so that a more important text comes first. If it would have to
// keep more than 64 KiB, it releases itself. It is safe for concurrent use.
type Held struct {
	mu       sync.Mutex
	out      io.Writer
	buffer   bytes.Buffer
	released bool
}

// Hold returns a writer that keeps its input, and writes it to out when it is released.
func Hold(out io.Writer) *Held { return &Held{out: out} }

// Write implements [io.Writer].
func (h *Held) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.released && h.buffer.Len()+len(p) <= maxHeld {
		return h.buffer.Write(p)
	}
	if err := h.release(); err != nil {
		return 0, err
	}
	return h.out.Write(p)
}

// Release writes the kept input. Later writes go through at once.
func (h *Held) Release() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.release()
}

// release is [Held.Release] for a caller that holds mu.
func (h *Held) release() error {
	h.released = true
	_, err := h.buffer.WriteTo(h.out)
	return err
}

// OpenBrowser opens a URL in the browser of the desktop and reports whether it could start one. Other users of the
// machine can see the URL in the list of processes, so it must not contain a secret.
func OpenBrowser(url string) bool {
	command := browserCommand(runtime.GOOS, os.Getenv)
	if command == nil {
		return false
	}
	c := exec.Command(command[0], append(command[1:], url)...)
	if c.Start() != nil {
		return false
	}
	go func() { _ = c.Wait() }() // nobody needs to know how the browser ended
	return true
}

// browserCommand returns the command that opens a URL, or nil without a desktop or in a remote session.
func browserCommand(system string, env func(string) string) []string {
	switch {
	case env("SSH_CONNECTION") != "":
		return nil
	case system == "darwin":
		return []string{"open"}
	case system == "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler"}
	case env("DISPLAY") != "" || env("WAYLAND_DISPLAY") != "":
		return []string{"xdg-open"}
	}
	return nil
}
