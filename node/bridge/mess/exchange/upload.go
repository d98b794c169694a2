package exchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// uploads keeps the files that the owner uploads before the message that names them. A mark beside such a file is
// removed in the transaction that stores the message. A file whose mark is a day old is removed: the message that
// should name it was refused, or never sent.
type uploads struct{ records store.Records }

const (
	keepUploads = 24 * time.Hour
	maxUploads  = 100 // marked uploads of one thread
)

type uploadMark struct {
	At time.Time `json:"at"`
}

// Upload stores a file of the owner with a thread and returns the content entry that shows it (MESS-58). Uploading the
// same file again returns the same entry, as long as the thread gets no new message.
func (x *Exchange) Upload(ctx context.Context, who Actor, ref, name string, data []byte) (wire.Value, error) {
	t, err := x.Thread(ctx, who, ref)
	if err != nil {
		return wire.Value{}, err
	}
	switch {
	case len(data) > thread.MaxUpload:
		return wire.Value{}, thread.TooLarge("the file is larger than 10 MiB")
	case len(data) == 0:
		return wire.Value{}, thread.Bad("file", "is empty")
	}
	kind, mime := thread.Sniff(data)
	for n := range maxUploads {
		file := thread.AttachmentFile(t.Serial+1, kind, name, mime)
		if n > 0 {
			file = thread.AttachmentFile(t.Serial+1, kind, fmt.Sprintf("%d-%s", n, name), mime)
		}
		a := Attachment{Name: file, Mime: mime, Size: len(data), Data: data}
		err := (uploads{x.records}).save(ctx, t.Ref, a)
		switch {
		case errors.Is(err, store.ErrConflict):
			continue
		case errors.Is(err, store.ErrQuota):
			return wire.Value{}, thread.Conflict("too many uploaded files of the thread are in no message yet: send a message that names them")
		case err != nil:
			return wire.Value{}, err
		}
		return wire.Obj(wire.Field(kind, a.Tree(name))), nil
	}
	return wire.Value{}, thread.Conflict("too many files of this name: choose another name")
}

// save stores a file with its mark. If the same file is stored already, save renews the mark. If another file has the
// same name, the error is [store.ErrConflict].
func (u uploads) save(ctx context.Context, ref string, a Attachment) error {
	now := time.Now().UTC()
	rec := a.record(ref)
	changes := []store.Change{{Record: rec}, {
		Record: store.Record{NS: NSUploads, Key: rec.Key, Body: thread.Encode(uploadMark{now}), Terms: []string{ref}}, Max: maxUploads,
	}}
	err := u.records.Apply(ctx, changes, now)
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	stored, err := u.records.Get(ctx, NSFiles, rec.Key, now)
	mark, markErr := u.records.Get(ctx, NSUploads, rec.Key, now)
	if err := errors.Join(IgnoreMissing(err), IgnoreMissing(markErr)); err != nil {
		return err
	}
	if mark.Key == "" || !bytes.Equal(stored.Body, rec.Body) {
		return store.ErrConflict
	}
	changes[0].IfRev, changes[1].IfRev = stored.Rev, mark.Rev
	return u.records.Apply(ctx, changes, now)
}

// marks returns the marks of the uploads of a thread, by the name of the file.
func (u uploads) marks(ctx context.Context, ref string, now time.Time) (map[string]store.Record, error) {
	page, err := u.records.List(ctx, NSUploads, ref, "", maxUploads, now)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]store.Record, len(page.Records))
	for _, rec := range page.Records {
		byName[strings.TrimPrefix(rec.Key, ref+"/")] = rec
	}
	return byName, nil
}

// eachFile calls do with the name of every attachment in a tree.
func eachFile(v wire.Value, do func(name string)) {
	if name := v.GetStr("file"); thread.IsAttachmentName(name) {
		do(name)
	}
	for _, m := range v.Members() {
		eachFile(m.Value, do)
	}
	for e := range v.Elems() {
		eachFile(e, do)
	}
}

// removeOld removes files that were uploaded at least a day ago and that no message names.
func (u uploads) removeOld(ctx context.Context, now time.Time) (removed int, err error) {
	for mark, err := range store.AllRecords(ctx, u.records, NSUploads, "", now) {
		if err != nil {
			return removed, err
		}
		m, err := store.Decode[uploadMark](mark)
		if err != nil {
			return removed, err
		}
		if now.Sub(m.At) < keepUploads {
			continue
		}
		err = u.records.Apply(ctx, []store.Change{
			{Record: mark, IfRev: mark.Rev, Delete: true},
			{Record: store.Record{NS: NSFiles, Key: mark.Key}, IfRev: store.Any, Delete: true},
		}, now)
		if errors.Is(err, store.ErrConflict) {
			continue // a message names it by now, or the owner uploaded it again
		}
		if err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// tidy removes what is past its retention, unless the clock is in doubt.
func (x *Exchange) tidy(ctx context.Context) {
	if !x.clock.Reliable() {
		return
	}
	if _, err := x.Purge(ctx, time.Now()); err != nil && ctx.Err() == nil {
		x.log.Error("old threads could not be removed", "error", err)
	}
	if _, err := (uploads{x.records}).removeOld(ctx, time.Now()); err != nil && ctx.Err() == nil {
		x.log.Error("uploads that no message names could not be removed", "error", err)
	}
}
