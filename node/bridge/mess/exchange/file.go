package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// File is a file that a block names and that becomes an attachment: a file of the owner (file://), or a file of a foreign
// thread.
type File struct {
	Failure    string // why the file is missing; "" if Data has it
	Name, Mime string
	Data       []byte
}

// files are the files of one transaction: those that its entries may name, and those that it stores.
type files struct {
	named           map[string]File            // files of the owner that the block names, by their URI
	foreign         map[string]File            // files of a foreign thread, by address
	stored          []store.Change             // the new attachments
	namedInMessages map[string]map[string]bool // thread → names of the attachments that its new messages name
}

// readOwnerFiles reads the files that a block of the owner names, from the folder dir.
func (s *files) readOwnerFiles(dir string, b thread.Block) error {
	for i, e := range b {
		list, _ := e.Body.Get(thread.ContentKey[e.Type])
		for c := range list.Elems() {
			if c.Len() != 1 {
				continue
			}
			uri := thread.ResourceURI(c.Members()[0].Key, c.At(0))
			if _, isRead := s.named[uri]; isRead || len(uri) < 5 || !strings.EqualFold(uri[:5], "file:") {
				continue
			}
			name, ok := strings.CutPrefix(uri[5:], "//")
			if !ok {
				return thread.Bad(thread.EntryPath(i, e)+"."+thread.ContentKey[e.Type], "must name a file as file://NAME")
			}
			f, err := readOwnerFile(dir, name)
			if err != nil {
				return withEntryPath(err, thread.EntryPath(i, e)+"."+thread.ContentKey[e.Type])
			}
			s.named[uri] = f
		}
	}
	return nil
}

// readOwnerFile reads a regular file below dir. Neither its name nor a symbolic link leads out of dir (MESS-63).
func readOwnerFile(dir, name string) (f File, err error) {
	const outside = "must lie in the folder mess.attachments, without .. or %"
	if filepath.IsAbs(name) {
		if name, err = filepath.Rel(dir, name); err != nil {
			return f, thread.Bad("", outside)
		}
	}
	if !filepath.IsLocal(name) || strings.ContainsAny(name, "%\x00\\") {
		return f, thread.Bad("", outside)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return f, thread.Bad("", "mess.attachments cannot be opened")
	}
	defer root.Close()
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, thread.Bad("", "the file does not exist")
	case err != nil:
		return f, thread.Bad("", outside)
	case !info.Mode().IsRegular() || info.Size() == 0:
		return f, thread.Bad("", "must be a file that is not empty")
	case info.Size() > thread.MaxUpload:
		return f, thread.TooLarge("the file is larger than 10 MiB")
	}
	if f.Data, err = root.ReadFile(name); err != nil {
		return f, thread.Bad("", "cannot be read")
	}
	f.Name = filepath.Base(name)
	_, f.Mime = thread.Sniff(f.Data)
	return f, nil
}

// detach moves large inline data of an entry to attachments of the thread (MESS-58), and stores as attachments the
// files that the entry names (MESS-63).
func (s *files) detach(th *thread.Thread, e thread.Entry) thread.Entry {
	key := thread.ContentKey[e.Type]
	list, ok := e.Body.Get(key)
	if !ok || list.Kind() != wire.Array || len(list.JSON()) < thread.MaxInline && len(s.named)+len(s.foreign) == 0 {
		return e // nothing to store
	}
	elems := slices.Collect(list.Elems())
	for i, c := range elems {
		if c.Len() == 1 {
			kind := c.Members()[0].Key
			if moved, ok := s.moveOut(th, kind, c.At(0), i); ok {
				elems[i] = wire.Obj(wire.Field(kind, moved))
			}
		}
	}
	e.Body = e.Body.With(key, wire.Arr(elems...))
	return e
}

// moveOut stores a large data URI, or a file that the block names, as an attachment, and returns the stored form of the
// content (MESS-10). It reports false if v stays as it is. n is the index of the content entry.
func (s *files) moveOut(th *thread.Thread, kind string, v wire.Value, n int) (wire.Value, bool) {
	uri, name := thread.ResourceURI(kind, v), v.GetStr("name")
	f, ok := s.named[uri]
	if uri == "" {
		f, ok = s.foreign[v.GetStr("resource")] // the address of a file of a foreign thread
	}
	mime, raw := f.Mime, f.Data
	if isForeign := ok && uri == ""; isForeign {
		if f.Failure == "" && th.ForeignBytes+len(raw) > thread.MaxThread {
			f.Failure = "the files of the thread are too large together"
		}
		if f.Failure != "" { // the content stays, with the reason
			return v.With(thread.NotFetched, wire.Text(f.Failure)), true
		}
		th.ForeignBytes += len(raw)
	}
	if !ok {
		if len(uri) <= thread.MaxInline || !strings.HasPrefix(uri, "data:") {
			return v, false
		}
		var err error
		if mime, raw, err = thread.DecodeData(uri); err != nil {
			return v, false
		}
	}
	name = cmp.Or(name, f.Name)
	fileName := func() string {
		return thread.AttachmentFile(th.Serial, kind, strings.TrimSuffix(fmt.Sprintf("%d-%s", n, name[max(0, len(name)-80):]), "-"), mime)
	}
	a := Attachment{Name: fileName(), Mime: mime, Size: len(raw), Data: raw}
	isTaken := func(c store.Change) bool { return c.Record.Key == th.Ref+"/"+a.Name }
	for slices.ContainsFunc(s.stored, isTaken) { // another entry of the message has an attachment of this name
		n += thread.MaxContent // no content entry has this index
		a.Name = fileName()
	}
	s.stored = append(s.stored, store.Change{Record: a.record(th.Ref), IfRev: store.Any})
	return a.Tree(name), true
}

// recordNames records the names of the attachments that a new message of a thread names.
func (s *files) recordNames(ref string, mess wire.Value) {
	eachFile(mess, func(name string) {
		if s.namedInMessages[ref] == nil {
			s.namedInMessages[ref] = map[string]bool{}
		}
		s.namedInMessages[ref][name] = true
	})
}

// keepNamed returns the changes that keep the uploads that the new messages name.
func (s *files) keepNamed(ctx context.Context, records store.Records, now time.Time) (changes []store.Change, err error) {
	for ref, names := range s.namedInMessages {
		for name := range names {
			rec, err := records.Get(ctx, NSFiles, ref+"/"+name, now)
			if err = IgnoreMissing(err); err != nil {
				return nil, err
			}
			if !rec.Expires.IsZero() {
				rec.Terms, rec.Expires = nil, time.Time{}
				changes = append(changes, store.Change{Record: rec, IfRev: rec.Rev})
			}
		}
	}
	return changes, nil
}
