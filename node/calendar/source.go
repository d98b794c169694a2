package calendar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/atomicfile"
)

// Source provides busy times.
type Source interface {
	// Name returns a name for the owner; it contains no secret.
	Name() string
	// Busy lists the times inside the window at which the owner is busy, unsorted and possibly overlapping, and the
	// errors in the calendar. owner is the zone for times without a zone. After an error, nothing is known.
	Busy(ctx context.Context, window Interval, owner *time.Location) ([]Interval, []Problem, error)
}

// Files is a folder of .ics files, or one file. Each call reads it again, because other programs may change it.
type Files struct{ Path string }

var _ Source = Files{}

// maxFiles and maxFilesBytes bound a folder. maxFilesBytes also bounds an answer of a CalDAV server.
const (
	maxFiles      = 20_000
	maxFilesBytes = 64 << 20
)

// Name returns the path.
func (f Files) Name() string { return f.Path }

// Busy reads every file. A file of a folder that is not a calendar is a problem; a single file is an error.
func (f Files) Busy(ctx context.Context, window Interval, owner *time.Location) ([]Interval, []Problem, error) {
	names, err := f.list()
	if err != nil {
		return nil, nil, fmt.Errorf("read calendar %s: %w", f.Path, err)
	}
	var events calendarData
	size := 0
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		text, err := readFile(name)
		if err != nil {
			return nil, nil, fmt.Errorf("read calendar %s: %w", name, err)
		}
		if size += len(text); size > maxFilesBytes {
			return nil, nil, fmt.Errorf("read calendar %s: more than %d MiB", f.Path, maxFilesBytes>>20)
		}
		d, err := parse(text, owner, window)
		if err != nil && name == f.Path {
			return nil, nil, fmt.Errorf("read calendar %s: %w", name, err)
		}
		events.add(d, name)
		if err != nil {
			events.addProblem(Problem{Source: name, Text: err.Error(), Unread: true})
		}
	}
	return events.busy(ctx, window)
}

// add appends the content of a file or object.
func (d *calendarData) add(other calendarData, source string) {
	for _, e := range other.events {
		e.source = source
		d.events = append(d.events, e)
	}
	for _, p := range other.problems {
		p.Source = source
		d.addProblem(p)
	}
	d.blocked = append(d.blocked, other.blocked...)
}

// list returns the names of the files in a stable order.
func (f Files) list() ([]string, error) {
	info, err := os.Stat(f.Path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{f.Path}, nil
	}
	entries, err := os.ReadDir(f.Path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if strings.EqualFold(filepath.Ext(e.Name()), ".ics") && !e.IsDir() {
			out = append(out, filepath.Join(f.Path, e.Name()))
		}
	}
	if len(out) > maxFiles {
		return nil, fmt.Errorf("more than %d files", maxFiles)
	}
	return out, nil
}

func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	return text, nil
}

// Writer stores agreed events in the owner's calendar. Repeating a call must do no harm.
type Writer interface {
	// Put writes the event and replaces one with the same UID.
	Put(ctx context.Context, e Event) error
	// Remove deletes the event. A missing event is not an error.
	Remove(ctx context.Context, uid string) error
}

// Folder writes each event to its own file, for a program that synchronizes the folder or an owner who opens it.
type Folder struct{ Path string }

var _ Writer = Folder{}

// Put writes UID.ics atomically.
func (f Folder) Put(_ context.Context, e Event) error {
	if err := os.MkdirAll(f.Path, 0o700); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if err := atomicfile.Write(f.file(e.UID), e.Encode()); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return nil
}

// Remove deletes UID.ics.
func (f Folder) Remove(_ context.Context, uid string) error {
	if err := os.Remove(f.file(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove event: %w", err)
	}
	return nil
}

// file returns the path of an event's file. UIDs come from [UID] and contain only letters, digits and "-".
func (f Folder) file(uid string) string { return filepath.Join(f.Path, uid+".ics") }
