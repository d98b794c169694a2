package main

import (
	"fmt"
	"io"
	"os"
)

// progress is the one line on a terminal that says what is going on. A nil progress says nothing.
type progress struct {
	w io.Writer
}

// newProgress returns nil where f is no terminal.
func newProgress(f *os.File) *progress {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return &progress{w: f}
}

const clearLine = "\r\x1b[K"

// say replaces the line.
func (p *progress) say(format string, args ...any) {
	if p != nil {
		fmt.Fprintf(p.w, clearLine+format, args...)
	}
}

// end removes the line.
func (p *progress) end() {
	if p != nil {
		fmt.Fprint(p.w, clearLine)
	}
}
