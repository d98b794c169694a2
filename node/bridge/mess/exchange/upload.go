package exchange

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The owner uploads a file before the message that names it. Until then the file expires after a day, because the message
// may be refused, or never sent.
const (
	keepUploads = 24 * time.Hour
	maxUploads  = 100 // files of one thread that no message names yet
)

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
		err := x.saveUpload(ctx, t.Ref, a)
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

// saveUpload stores a file that no message names yet. If the same file is stored already, its day begins again. If another
// file has the same name, the error is [store.ErrConflict].
func (x *Exchange) saveUpload(ctx context.Context, ref string, a Attachment) error {
	now := time.Now()
	upload := store.Change{Record: a.record(ref), Max: maxUploads}
	upload.Record.Terms, upload.Record.Expires = []string{"upload/" + ref}, now.Add(keepUploads)
	err := x.records.Apply(ctx, []store.Change{upload}, now)
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	stored, err := x.records.Get(ctx, NSFiles, upload.Record.Key, now)
	if err != nil || stored.Expires.IsZero() || !bytes.Equal(stored.Body, upload.Record.Body) {
		return cmp.Or(IgnoreMissing(err), store.ErrConflict)
	}
	upload.IfRev = stored.Rev
	return x.records.Apply(ctx, []store.Change{upload}, now)
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

// tidy removes what is past its retention, unless the clock is in doubt.
func (x *Exchange) tidy(ctx context.Context) {
	if !x.clock.Reliable() {
		return
	}
	if _, err := x.Purge(ctx, time.Now()); err != nil && ctx.Err() == nil {
		x.log.Error("old threads could not be removed", "error", err)
	}
}
