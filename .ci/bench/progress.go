package main

import (
	"fmt"
	"io"
	"os"
)

// progress is a line on the terminal that shows the current step. A nil progress shows nothing.
type progress struct {
	w io.Writer
}

// newProgress returns nil if f is not a terminal.
func newProgress(f *os.File) *progress {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return &progress{w: f}
}

const clearLine = "\r\x1b[K"

func (p *progress) say(format string, args ...any) {
	if p != nil {
		fmt.Fprintf(p.w, clearLine+format, args...)
	}
}

func (p *progress) end() {
	if p != nil {
		fmt.Fprint(p.w, clearLine)
	}
}
