package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
)

// lineFile appends JSON lines to a file in the background, so that callers only queue an entry. If the queue is full,
// lineFile drops lines and later reports how many it dropped (MEW-D10).
type lineFile struct {
	path          string
	maxLines      int                            // bound of the queue
	maxBytes      int                            // bound of the queue
	rotateSize    int64                          // the file is rotated at this size; 0: never
	appendDropped func(dst []byte, n int) []byte // appends a line that reports n dropped lines; may be nil
	log           *slog.Logger

	mu      sync.Mutex
	queue   []lineEntry
	lines   int // in the queue
	bytes   int // in the queue
	dropped int // lines, since the last flush
	wake    chan struct{}

	file *os.File // only the writing goroutine uses this field and the following ones
	size int64
	buf  []byte
}

const (
	gatherTime  = 10 * time.Millisecond // how long lines gather before a write
	writeSize   = 256 << 10             // bytes in the buffer that start a write
	keepRotated = 9                     // files
)

func newLineFile(path string, log *slog.Logger) *lineFile {
	return &lineFile{path: path, maxLines: 1 << 20, maxBytes: 64 << 20, log: log, wake: make(chan struct{}, 1)}
}

// lineEntry appends one or more lines to dst. An entry of several lines calls spill after each of them, so that it is
// written in parts.
type lineEntry func(dst []byte, spill func([]byte) []byte) []byte

// put queues an entry of n lines that takes size bytes of memory. An empty queue takes an entry of any size.
func (f *lineFile) put(n, size int, e lineEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) > 0 && (f.lines+n > f.maxLines || f.bytes+size > f.maxBytes) {
		f.dropped += n
		return
	}
	f.queue = append(f.queue, e)
	f.lines += n
	f.bytes += size
	waiting.Wake(f.wake)
}

// run writes until ctx ends, and then writes the remaining entries.
func (f *lineFile) run(ctx context.Context) {
	defer f.close()
	for {
		select {
		case <-ctx.Done():
			f.flush()
			return
		case <-f.wake:
		}
		select {
		case <-ctx.Done():
		case <-time.After(gatherTime):
		}
		f.flush()
	}
}

func (f *lineFile) flush() {
	f.mu.Lock()
	queue, dropped := f.queue, f.dropped
	f.queue, f.lines, f.bytes, f.dropped = nil, 0, 0, 0
	f.mu.Unlock()
	buf := f.buf[:0]
	for _, e := range queue {
		buf = f.spill(e(buf, f.spill))
	}
	if dropped > 0 {
		f.log.Warn("lines were dropped", "file", f.path, "lines", dropped)
		if f.appendDropped != nil {
			buf = f.appendDropped(buf, dropped)
		}
	}
	f.write(buf)
	f.buf = buf
	if cap(buf) > 2*writeSize {
		f.buf = nil // free a buffer that has grown for a large envelope
	}
}

// spill writes the buffer if it is full, and returns the buffer to continue with.
func (f *lineFile) spill(buf []byte) []byte {
	if len(buf) < writeSize {
		return buf
	}
	f.write(buf)
	return buf[:0]
}

func (f *lineFile) write(data []byte) {
	if len(data) == 0 {
		return
	}
	if err := f.append(data); err != nil {
		f.log.Error("lines of a log not written; they are lost", "file", f.path, "err", err)
		f.close()
	}
}

func (f *lineFile) append(data []byte) error {
	if f.file == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	n, err := f.file.Write(data)
	f.size += int64(n)
	if err == nil && f.rotateSize > 0 && f.size >= f.rotateSize {
		return f.rotate()
	}
	return err
}

func (f *lineFile) open() error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

// rotate renames the file and begins a new one. It deletes the oldest rotated file.
func (f *lineFile) rotate() error {
	f.close()
	for i := keepRotated - 1; i >= 1; i-- {
		if err := os.Rename(f.rotatedPath(i), f.rotatedPath(i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(f.path, f.rotatedPath(1))
}

func (f *lineFile) rotatedPath(i int) string {
	ext := filepath.Ext(f.path)
	return fmt.Sprintf("%s.%d%s", strings.TrimSuffix(f.path, ext), i, ext)
}

func (f *lineFile) close() {
	if f.file != nil {
		if err := f.file.Close(); err != nil {
			f.log.Error("log file not closed", "file", f.path, "err", err)
		}
		f.file = nil
	}
}

// newOutputLog returns the log of a participant: one line for each envelope that is delivered to it (MEW-D6).
func newOutputLog(path string, log *slog.Logger) *lineFile {
	f := newLineFile(path, log)
	f.maxLines, f.maxBytes = 4096, 8<<20 // MEW-Q3
	return f
}

// putLine queues an envelope as one line. raw is compact JSON and therefore contains no line breaks.
func (f *lineFile) putLine(raw []byte) {
	f.put(1, len(raw), func(dst []byte, _ func([]byte) []byte) []byte { return append(append(dst, raw...), '\n') })
}
