package mess

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A file is uploaded before the message that names it. Until then a mark stands beside it, which goes in the unit that stores
// the message. What has a mark for a day goes with it: the message was refused, or never sent.

const (
	keepUploads = 24 * time.Hour
	maxUploads  = 100 // of one thread that have a mark
)

// upload is the mark.
type upload struct {
	At time.Time `json:"at"`
}

// Upload stores a file of the owner's with a thread and returns the content entry that shows it (MESS-58). The same file again
// is the same entry, as long as no message names it.
func (x *Exchange) Upload(ctx context.Context, who Actor, ref, name string, data []byte) (wire.Value, error) {
	t, err := x.Thread(ctx, who, ref)
	if err != nil {
		return wire.Value{}, err
	}
	switch {
	case len(data) > maxUpload:
		return wire.Value{}, thread.TooLarge("the file is larger than 10 MiB")
	case len(data) == 0:
		return wire.Value{}, thread.Bad("file", "is empty")
	}
	kind, mime := sniff(data)
	for n := range maxUploads {
		file := attachmentFile(t.Serial+1, kind, name, mime)
		if n > 0 {
			file = attachmentFile(t.Serial+1, kind, fmt.Sprintf("%d-%s", n, name), mime)
		}
		a := Attachment{Name: file, Mime: mime, Size: len(data), Data: data}
		err := x.keepUpload(ctx, t.Ref, a)
		switch {
		case errors.Is(err, store.ErrConflict):
			continue
		case errors.Is(err, store.ErrQuota):
			return wire.Value{}, thread.Conflict("too many files were uploaded to the thread and are in no message")
		case err != nil:
			return wire.Value{}, err
		}
		return wire.Obj(wire.Field(kind, a.tree(name))), nil
	}
	return wire.Value{}, thread.Conflict("too many files of this name")
}

// keepUpload stores a file with its mark. Where the same one stands there already, its day begins anew; where another one
// does, that is store.ErrConflict.
func (x *Exchange) keepUpload(ctx context.Context, ref string, a Attachment) error {
	now := time.Now().UTC()
	rec := a.record(ref)
	changes := []store.Change{{Record: rec}, {
		Record: store.Record{NS: nsUploads, Key: rec.Key, Body: thread.Encode(upload{now}), Terms: []string{ref}}, Max: maxUploads,
	}}
	err := x.records.Apply(ctx, changes, now)
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	there, err := x.records.Get(ctx, nsFiles, rec.Key, now)
	mark, err2 := x.records.Get(ctx, nsUploads, rec.Key, now)
	if err := errors.Join(ignoreMissing(err), ignoreMissing(err2)); err != nil {
		return err
	}
	if mark.Key == "" || !bytes.Equal(there.Body, rec.Body) {
		return store.ErrConflict
	}
	changes[0].IfRev, changes[1].IfRev = there.Rev, mark.Rev
	return x.records.Apply(ctx, changes, now)
}

// uploads lists the marks of a thread by the names of its files.
func (x *Exchange) uploads(ctx context.Context, ref string, now time.Time) (map[string]store.Record, error) {
	page, err := x.records.List(ctx, nsUploads, ref, "", maxUploads, now)
	if err != nil {
		return nil, err
	}
	marks := make(map[string]store.Record, len(page.Records))
	for _, rec := range page.Records {
		marks[strings.TrimPrefix(rec.Key, ref+"/")] = rec
	}
	return marks, nil
}

// filesIn calls do with the names of attachments in a tree.
func filesIn(v wire.Value, do func(name string)) {
	if name := v.GetStr("file"); thread.AttachmentName.MatchString(name) {
		do(name)
	}
	for _, m := range v.Members() {
		filesIn(m.Value, do)
	}
	for e := range v.Elems() {
		filesIn(e, do)
	}
}

// names remembers which files of a thread a message of this block names.
func (t *tx) names(ref string, said wire.Value) {
	filesIn(said, func(name string) {
		if t.named == nil {
			t.named = map[string]map[string]bool{}
		}
		if t.named[ref] == nil {
			t.named[ref] = map[string]bool{}
		}
		t.named[ref][name] = true
	})
}

// unmark takes the marks off the uploads that this block names: from now on they are the thread's.
func (t *tx) unmark(ctx context.Context) error {
	for ref, names := range t.named {
		marks, err := t.x.uploads(ctx, ref, t.now)
		if err != nil {
			return err
		}
		for name, mark := range marks {
			if names[name] {
				t.changes = append(t.changes, store.Change{Record: mark, IfRev: mark.Rev, Delete: true})
			}
		}
	}
	return nil
}

// dropUploads removes what was uploaded a day ago and no message names.
func (x *Exchange) dropUploads(ctx context.Context, now time.Time) (removed int, err error) {
	err = x.each(ctx, nsUploads, now, func(mark store.Record) error {
		var u upload
		if err := json.Unmarshal(mark.Body, &u); err != nil {
			return fmt.Errorf("decode the mark of an upload: %w", err)
		}
		if now.Sub(u.At) < keepUploads {
			return nil
		}
		err := x.records.Apply(ctx, []store.Change{
			{Record: mark, IfRev: mark.Rev, Delete: true},
			{Record: store.Record{NS: nsFiles, Key: mark.Key}, IfRev: store.Any, Delete: true},
		}, now)
		if isConflict(err) {
			return nil // a message names it by now
		}
		if err == nil {
			removed++
		}
		return err
	})
	return removed, err
}

// tidy removes what is kept no longer, unless the clock is in doubt.
func (x *Exchange) tidy(ctx context.Context) {
	if !x.clock.Believed() {
		return
	}
	if _, err := x.purge(ctx, time.Now()); err != nil && ctx.Err() == nil {
		x.log.Error("old threads could not be removed", "error", err)
	}
	if _, err := x.dropUploads(ctx, time.Now()); err != nil && ctx.Err() == nil {
		x.log.Error("uploads that no message names could not be removed", "error", err)
	}
}
