package bolt

import (
	"os"
	"time"
)

// Commit is one commit of a group of units. A unit has the changes of one caller.
type Commit struct {
	Units int           // number of units in the group, including those that wrote nothing
	Bytes int64         // size of the pages that it wrote
	Took  time.Duration // time to write and sync the pages
}

// Stats is the state of an open database.
type Stats struct {
	Queued    int   // units that wait for the writer
	FileBytes int64 // size of the file
	FreeBytes int64 // part of FileBytes in free pages, which are used before the file grows
	Writable  bool  // false after a failed commit, until the engine has reopened the file
}

// Stats returns the current state of the database without reading a page. Sizes are 0 while the file is closed.
func (s *Store) Stats() Stats {
	out := Stats{Queued: s.writer.queue.Len(), Writable: s.writer.broken.Load() == nil}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return out
	}
	pages := s.db.Stats()
	out.FreeBytes = int64(pages.FreePageN+pages.PendingPageN) * int64(s.db.Info().PageSize)
	if info, err := os.Stat(s.path); err == nil {
		out.FileBytes = info.Size()
	}
	return out
}

// Free returns the number of bytes that this process may still write to the disk of path. If it is less than
// Config.MinFree, a store on this disk refuses writes.
func Free(path string) (int64, error) { return diskFree(path) }
