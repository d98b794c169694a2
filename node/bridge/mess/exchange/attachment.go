package exchange

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Attachment is a file of a thread. The exchange never interprets its bytes.
type Attachment struct {
	Name string `json:"name"` // att-003-image-photo.jpg
	Mime string `json:"mime"`
	Size int    `json:"size"`
	Data []byte `json:"data,omitempty"`
}

// detach moves large inline data of an entry to attachments of the thread (MESS-58), and stores the files that the
// entry names as attachments (MESS-63).
func (t *tx) detach(th *thread.Thread, e thread.Entry) thread.Entry {
	key := thread.ContentKey[e.Type]
	list, ok := e.Body.Get(key)
	if !ok || list.Kind() != wire.Array || len(list.JSON()) < thread.MaxInline && len(t.files)+len(t.opts.Files) == 0 {
		return e
	}
	elems := slices.Collect(list.Elems())
	for i, c := range elems {
		if c.Len() == 1 {
			kind := c.Members()[0].Key
			if moved, ok := t.moveOut(th, kind, c.At(0), i); ok {
				elems[i] = wire.Obj(wire.Field(kind, moved))
			}
		}
	}
	e.Body = e.Body.With(key, wire.Arr(elems...))
	return e
}

// moveOut stores a large data URI, or a file that the block names, as an attachment, and returns the stored form of the
// content (MESS-10). It reports false if v stays as it is. n is the index of the content entry.
func (t *tx) moveOut(th *thread.Thread, kind string, v wire.Value, n int) (wire.Value, bool) {
	uri, name := thread.ResourceURI(kind, v), v.GetStr("name")
	f, ok := t.files[uri]
	if uri == "" {
		f, ok = t.opts.Files[v.GetStr("resource")] // the address of a file of a foreign thread
	}
	mime, raw := f.Mime, f.Data
	if ok && uri == "" {
		if f.Failure == "" && th.Taken+len(raw) > thread.MaxThread {
			f.Failure = "the files of the thread are too large together"
		}
		if f.Failure != "" { // the content stays, with the reason
			return v.With(thread.NotFetched, wire.Text(f.Failure)), true
		}
		th.Taken += len(raw)
	}
	if !ok {
		if len(uri) <= thread.MaxInline || !strings.HasPrefix(uri, "data:") {
			return v, false
		}
		text, err := "", error(nil)
		if mime, text, err = thread.SplitData(uri); err != nil {
			return v, false
		}
		if raw, err = thread.StrictBase64.DecodeString(text); err != nil {
			return v, false
		}
	}
	if f.copied {
		t.copiedBytes += len(raw)
	}
	name = cmp.Or(name, f.Name)
	fileName := func() string {
		return thread.AttachmentFile(th.Serial, kind, strings.TrimSuffix(fmt.Sprintf("%d-%s", n, name[max(0, len(name)-80):]), "-"), mime)
	}
	a := Attachment{Name: fileName(), Mime: mime, Size: len(raw), Data: raw}
	isTaken := func(c store.Change) bool { return c.Record.NS == NSFiles && c.Record.Key == th.Ref+"/"+a.Name }
	for slices.ContainsFunc(t.changes, isTaken) { // another entry of the message has an attachment of this name
		n += thread.MaxContent
		a.Name = fileName()
	}
	t.changes = append(t.changes, store.Change{Record: a.record(th.Ref), IfRev: store.Any})
	return a.Tree(name), true
}

func (a Attachment) record(ref string) store.Record {
	return store.Record{NS: NSFiles, Key: ref + "/" + a.Name, Body: thread.Encode(a)}
}

// Tree returns the stored form of the content, under the name that its sender gave to the file.
func (a Attachment) Tree(name string) wire.Value {
	v := wire.Obj(
		wire.TextField("file", a.Name), wire.TextField("mime", a.Mime),
		wire.Field("size", wire.Int(int64(a.Size))),
	)
	if name != "" {
		v = v.With("name", wire.Text(name))
	}
	return v
}

// KeepAttachment stores a file with a thread. The error is [store.ErrConflict] if the thread has a file of this name.
func (x *Exchange) KeepAttachment(ctx context.Context, ref string, a Attachment) error {
	return x.records.Apply(ctx, []store.Change{{Record: a.record(ref)}}, time.Now())
}

// Attachment returns a file of a thread that the actor may see.
func (x *Exchange) Attachment(ctx context.Context, who Actor, ref, file string) (Attachment, error) {
	if _, err := x.Thread(ctx, who, ref); err != nil {
		return Attachment{}, err
	}
	if !thread.IsAttachmentName(file) {
		return Attachment{}, thread.Bad("file", "is not the name of an attachment")
	}
	rec, err := x.records.Get(ctx, NSFiles, ref+"/"+file, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return Attachment{}, thread.Missing("no such attachment")
	}
	if err != nil {
		return Attachment{}, err
	}
	return thread.Decode[Attachment](rec, "attachment")
}

const shareKey = "share/key"

// shareSecret returns the key behind all share tokens, and creates it on the first call.
func (x *Exchange) shareSecret(ctx context.Context) (key []byte, err error) {
	err = store.Retry(func() error {
		rec, err := x.records.Get(ctx, NSMeta, shareKey, time.Now())
		if key = rec.Body; !errors.Is(err, store.ErrNotFound) {
			return err
		}
		key = make([]byte, 32)
		rand.Read(key) // never fails: crypto/rand
		return x.records.Apply(ctx, []store.Change{{Record: store.Record{NS: NSMeta, Key: shareKey, Body: key}}}, time.Now())
	})
	return key, err
}

// ShareToken returns the token that the address of a shared file must carry.
func (x *Exchange) ShareToken(ctx context.Context, ref, file string) (string, error) {
	key, err := x.shareSecret(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(ref + "/" + file)) // neither part contains a slash
	return hex.EncodeToString(mac.Sum(nil)), nil
}
