package bolt

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"
)

// readAheadStep is how much of a file readAhead requests at once.
const readAheadStep = 128 << 10

// readAhead asks the operating system to read a file into its cache, in the order of the file. bbolt reads every page
// when it opens the file, but in the order of its trees, so the system would not read ahead by itself.
func readAhead(path string, log *slog.Logger) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	p := newProgress(log, "read the database file", "bytes", info.Size())
	for at := int64(0); at < info.Size(); at += readAheadStep {
		if adviseRead(f, at, readAheadStep) != nil {
			return nil
		}
		p.note(at)
	}
	return nil
}

// progressInterval is the time between two log lines of a long task while the database is opened.
const progressInterval = 2 * time.Second

// progress logs how far a long task has come. A short task logs nothing.
type progress struct {
	log        *slog.Logger
	task, unit string
	total      int64
	next       time.Time
}

func newProgress(log *slog.Logger, task, unit string, total int64) *progress {
	return &progress{log, task, unit, total, time.Now().Add(progressInterval)}
}

// note logs how much of the total is done, unless the last line is recent.
func (p *progress) note(done int64) {
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	p.next = now.Add(progressInterval)
	p.log.Info(p.task, slog.Int64(p.unit, done), slog.Int64("of", p.total))
}
